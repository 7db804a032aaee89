#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One Markdown report of what bench_cuda and pytorch.py have measured.

    bench/cuda/report.py bench.json [pytorch.json] [-o FILE] [--command TEXT]...

Without -o the report goes to bench/results/cuda-DATE-GPU.md. Rows belong together where operation and shape
are equal; times of devices with different names are not put side by side (exit status 2). Whatever was not
measured is listed with its reason.
"""
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGAIN = ", again at the end"


class BadInput(Exception):
    """A file that is not what the report is made from."""


def read(path):
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for row in found["rows"]:
            row["operation"], row["name"], row["path"]
        found["program"], found["date"], found["device"]["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: {type(error).__name__}: {error}") from error
    return found


def measured(row):
    return row.get("milliseconds") is not None


def time_of(row):
    """The median, and how far a tenth of the times lie away from it."""
    spread = max(row["high"] - row["milliseconds"], row["milliseconds"] - row["low"]) / row["milliseconds"]
    return f"{row['milliseconds']:.4g} ± {100 * spread:.0f} %"


def rate_of(row):
    per_second = 1e3 / row["milliseconds"]
    if row["flop"] > 0:
        return f"{row['flop'] * per_second * 1e-12:.1f} TFLOP/s"
    return f"{row['bytes'] * per_second * 1e-12:.2f} TB/s"


def share_of(row, bench):
    peak = bench.get("peak_flop_per_second" if row["flop"] > 0 else "copy_bytes_per_second")
    if not peak:
        return ""
    work = row["flop"] if row["flop"] > 0 else row["bytes"]
    return f"{100 * work * 1e3 / row['milliseconds'] / peak:.1f} %"


def table(head, rows):
    """The first two columns are text, the others right-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def operation_table(operation, bench, others):
    """Each shape by each path of slimpack, beside each other implementation that has measured it."""
    rows = [row for row in bench["rows"] if row["operation"] == operation and measured(row)]
    if not rows:
        return []
    names = {row["name"] for row in rows}
    beside = {}
    for row in others:
        if row["operation"] == operation and row["name"] in names and measured(row):
            beside.setdefault(row["path"], {})[row["name"]] = row
    head = ["shape", "path", "ms", "rate", "of measured peak"]
    for path in beside:
        head += [f"{path}, ms", "over ours"]
    lines = []
    for row in rows:
        line = [row["name"], row["path"], time_of(row), rate_of(row), share_of(row, bench)]
        for of_path in beside.values():
            other = of_path.get(row["name"])
            line += [time_of(other), f"{other['milliseconds'] / row['milliseconds']:.2f}"] if other else ["", ""]
        lines.append(line)
    return [f"## `{operation}`", "", *table(head, lines), ""]


def reference_lines(bench):
    lines = []
    if bench.get("copy_bytes_per_second"):
        lines.append(f"- copy within the device: {bench['copy_bytes_per_second'] * 1e-12:.2f} TB/s, bytes read and written")
    if bench.get("peak_flop_per_second"):
        lines.append(f"- cuBLASLt at 8192³, bf16, random numbers: {bench['peak_flop_per_second'] * 1e-12:.1f} TFLOP/s")
    for row in bench["rows"]:
        if row["name"].endswith(AGAIN) and measured(row):
            lines.append(f"- the same at the end: {row['name'][:-len(AGAIN)]}, {rate_of(row)}")
    return lines


def words_of(mapping):
    return ", ".join(f"{key} {value}" for key, value in mapping.items())


def report(bench, torch, commands):
    device = bench["device"]
    if torch and torch["device"]["name"] != device["name"]:
        raise BadInput(f"the files are of different devices: {device['name']} and {torch['device']['name']}")
    others = torch["rows"] if torch else []
    title = f"# CUDA kernels on {device['name']}, {bench['date'][:10]}"
    lines = [title, "", f"- device: {words_of(device)}", f"- bench_cuda, {bench['date']}: {words_of(bench.get('versions', {}))}"]
    if torch:
        lines.append(f"- PyTorch, {torch['date']}: {words_of(torch.get('versions', {}))}")
    lines += reference_lines(bench)
    lines += ["", "Times are the median of many runs and the farther one of the 10 % and 90 % quantiles; input sets are taken in turn so that",
              "none is in the cache. Operations count what the mathematics needs: of attention the pairs that are visible, 4 D each for a",
              "forward pass and head, 10 D backward. *Of measured peak* is the share of the product at 8192³, or of the copy. *Over ours*:",
              "the other's time over that of the row; above 1 slimpack is faster.", ""]
    if commands:
        lines += ["```sh", *commands, "```", ""]
    seen = dict.fromkeys(row["operation"] for row in bench["rows"])
    for operation in seen:
        shown = dict(bench, rows=[row for row in bench["rows"] if not row["name"].endswith(AGAIN)])
        lines += operation_table(operation, shown, others)
    missing = [row for row in bench["rows"] + others if not measured(row)]
    if missing:
        lines += ["## Not measured", ""]
        by_reason = {}
        for row in missing:
            by_reason.setdefault((row["path"], row.get("why_not", "no reason given")), []).append(
                f"{row['operation']} of {row['name']}")
        for (path, why), cases in by_reason.items():
            lines.append(f"- {path}: {why} ({'; '.join(cases)})")
        lines.append("")
    return "\n".join(lines)


def file_name(bench):
    card = re.sub(r"[^a-z0-9]+", "-", bench["device"]["name"].lower()).strip("-")
    return f"cuda-{bench['date'][:10]}-{card}.md"


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=pathlib.Path)
    parser.add_argument("pytorch", type=pathlib.Path, nargs="?")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--command", action="append", default=[], help="a line that says how it was measured")
    options = parser.parse_args(arguments)
    try:
        bench = read(options.bench)
        torch = read(options.pytorch) if options.pytorch else None
        text = report(bench, torch, options.command)
    except BadInput as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 2
    path = options.output or ROOT / "bench" / "results" / file_name(bench)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
