# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/evaluation.md as SVG text: margins as distributions, and margins along an axis. Equal figures give equal bytes."""
import math
from html import escape

from evaluation_store import mean, quantile

STYLE = """text{font:12px system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif;fill:#1f2328}
.bg{fill:#ffffff}.title{font-size:15px;font-weight:600}.sub{fill:#57606a}.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:#d0d7de}.one{stroke:#1f2328;stroke-width:1.5}.dot{fill:#2f7ed8;fill-opacity:.45}.behind{fill:#c62f2f;fill-opacity:.75}
.spread{fill:#2f7ed8;fill-opacity:.16}.mean{stroke:#e07b00;stroke-width:2.5;fill:none}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.bg{fill:#0d1117}.sub{fill:#9ba5b0}.grid{stroke:#30363d}.one{stroke:#e6edf3}}"""
TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30)


class Axis:
    """A logarithmic axis of margins between two places of a picture, wide enough for the ratios and for 1."""

    def __init__(self, ratios, begin, end):
        self.low = max([tick for tick in TICKS if tick <= min([0.97, *ratios])], default=min(ratios))
        self.high = min([tick for tick in TICKS if tick >= max([1.05, *ratios])], default=max(ratios))
        self.begin, self.end = begin, end

    def place(self, ratio):
        return self.begin + (self.end - self.begin) * math.log(ratio / self.low) / math.log(self.high / self.low)

    def ticks(self, apart):
        """Ticks that are at least so many pixels apart, 1 among them."""
        kept = [1]
        for tick in sorted((tick for tick in TICKS if self.low <= tick <= self.high), key=lambda tick: (abs(math.log(tick)), tick)):
            if all(abs(self.place(tick) - self.place(other)) >= apart for other in kept):
                kept.append(tick)
        return sorted(kept)


def picture(width, height, title, sub, body):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
                      f"<title>{escape(title)}</title>", f"<style>\n{STYLE}\n</style>", f'<rect class="bg" width="{width}" height="{height}"/>',
                      f'<text class="title" x="16" y="26">{escape(title)}</text>', f'<text class="sub" x="16" y="46">{escape(sub)}</text>',
                      *body, "</svg>", ""])


def dot(x, y, ratio, words):
    return f'<circle class="{"behind" if ratio < 1 else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(words)}: {ratio:.3f}</title></circle>'


def distributions(title, sub, rows):
    """One row for each (label, [(ratio, words)]): a dot a setting, the middle eight tenths, and the geometric mean."""
    rows = [(label, points) for label, points in rows if points]
    width, left, top, step = 1020, 310, 66, 24
    bottom = top + step * len(rows)
    axis = Axis([ratio for _, points in rows for ratio, _ in points], left, width - 90)
    body = []
    for tick in axis.ticks(44):
        x = axis.place(tick)
        body.append(f'<line class="{"one" if tick == 1 else "grid"}" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>')
        body.append(f'<text class="sub mid" x="{x:.1f}" y="{bottom + 18}">{tick:g}</text>')
    for at, (label, points) in enumerate(rows):
        y = top + step * (at + 0.5)
        ratios = [ratio for ratio, _ in points]
        begin, end, centre = (axis.place(value) for value in (quantile(ratios, 0.1), quantile(ratios, 0.9), mean(ratios)))
        body.append(f'<text class="end" x="{left - 12}" y="{y + 4:.1f}">{escape(label)}</text>')
        body.append(f'<rect class="spread" x="{begin:.1f}" y="{y - 7:.1f}" width="{max(1.0, end - begin):.1f}" height="14"/>')
        body += [dot(axis.place(ratio), y, ratio, words) for ratio, words in points]
        body.append(f'<line class="mean" x1="{centre:.1f}" y1="{y - 9:.1f}" x2="{centre:.1f}" y2="{y + 9:.1f}"/>')
        body.append(f'<text class="sub" x="{width - 80}" y="{y + 4:.1f}">{mean(ratios):.3f} ({len(ratios)})</text>')
    return picture(width, bottom + 32, title, sub, body)


def trends(title, sub, panels):
    """One panel for each (name, {value: [(ratio, words)]}): dots by value, the range between least and most, the line of geometric means."""
    panels = [(name, {value: points for value, points in values.items() if points}) for name, values in panels]
    panels = [(name, values) for name, values in panels if values]
    panel, left, top, height = 380, 56, 86, 250
    width = left + panel * len(panels) + 8
    axis = Axis([ratio for _, values in panels for points in values.values() for ratio, _ in points], top + height, top)
    body = []
    for tick in axis.ticks(18):
        y = axis.place(tick)
        body.append(f'<line class="{"one" if tick == 1 else "grid"}" x1="{left}" y1="{y:.1f}" x2="{width - 16}" y2="{y:.1f}"/>')
        body.append(f'<text class="sub end" x="{left - 8}" y="{y + 4:.1f}">{tick:g}</text>')
    for at, (name, values) in enumerate(panels):
        begin = left + panel * at
        places = {value: begin + (panel - 24) * (i + 0.5) / len(values) for i, value in enumerate(values)}
        ranges = [(places[value], [ratio for ratio, _ in points]) for value, points in values.items()]
        upper = [f"{x:.1f},{axis.place(max(ratios)):.1f}" for x, ratios in ranges]
        lower = [f"{x:.1f},{axis.place(min(ratios)):.1f}" for x, ratios in reversed(ranges)]
        body.append(f'<text x="{begin + 8}" y="{top - 14}">{escape(name)}</text>')
        body.append(f'<polygon class="spread" points="{" ".join(upper + lower)}"/>')
        for value, points in values.items():
            body += [dot(places[value], axis.place(ratio), ratio, words) for ratio, words in points]
            body.append(f'<text class="sub mid" x="{places[value]:.1f}" y="{top + height + 18}">{escape(str(value))}</text>')
            body.append(f'<text class="sub mid" x="{places[value]:.1f}" y="{top + height + 34}">({len(points)})</text>')
        body.append(f'<polyline class="mean" points="{" ".join(f"{x:.1f},{axis.place(mean(ratios)):.1f}" for x, ratios in ranges)}"/>')
    return picture(width, top + height + 50, title, sub, body)
