// SPDX-License-Identifier: Apache-2.0
// The script of the HTML report, part 3: the lanes of one plan on a canvas.
#pragma once

#include <string_view>

namespace slimpack::page {

inline constexpr std::string_view kLanesScript = R"js(
"use strict";

const RANK_HEAD = 17;  // pixels above the lanes of a rank

/** Colours of the style sheet, read again when the scheme changes. */
const colours = {
  read() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    this.codes = ["forward", "backward", "head", "optimizer", ...page.gapCauses.map((cause) => "gap-" + cause)].map(colour);
    this.kinds = page.memoryKinds.map((_, at) => colour("kind-" + at));
    for (const name of ["page", "panel", "text", "quiet", "line", "accent", "reduce", "on-unit", "merged", "path", "chosen",
                        "held", "always", "limit", "forward", "backward"]) this[name] = colour(name);
  },
};

/** A canvas as wide as its box, in device pixels. Returns its context, scaled to CSS pixels. */
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, canvas.clientWidth);
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  context.font = "11px system-ui, sans-serif";
  return context;
}

/** Longer samples stand out: blue below 4 Ki tokens to red at the longest. */
function lengthColour(longest, most) {
  const low = Math.log2(4096), high = Math.max(low + 1, Math.log2(most));
  const share = Math.min(1, Math.max(0, (Math.log2(Math.max(1, longest)) - low) / (high - low)));
  return `hsl(${Math.round(225 - 225 * share)} 62% ${Math.round(58 - 8 * share)}%)`;
}

/** Draws and hit-tests the lanes of one plan. `chart` is the Timelines that it belongs to. */
class Lanes {
  constructor(chart, plan, canvas) {
    this.chart = chart;
    this.plan = plan;
    this.canvas = canvas;
    this.cursor = null;  // {row, at}: under the pointer or chosen by keys
    this.most = plan.samples.reduce((a, b) => Math.max(a, b), 1);
    const ends = plan.byWork.map((rank) => rank.dp).filter((dp) => plan.packed.has(dp));
    this.ranks = [...new Set([ends[0], ends[ends.length - 1]])].sort((a, b) => a - b);
  }

  show(ranks) {
    this.ranks = ranks;
    this.cursor = null;
    this.layOut();
  }

  layOut() {
    const {unit, memory, space, strip} = this.chart.sizes;
    this.rows = [];
    let y = 0;
    this.heads = [];
    for (const dp of this.ranks) {
      this.heads.push({dp, y});
      y += RANK_HEAD;
      for (const row of this.plan.rank(dp).rows) {
        this.rows.push({row, y, top: y + unit + strip, bottom: y + unit + strip + memory});
        y += unit + strip + memory + space;
      }
    }
    this.height = y;
    this.byDevice = new Map(this.rows.map((lane) => [`${lane.row.dp} ${lane.row.pp}`, lane]));
  }

  get left() { return this.chart.left; }
  get width() { return Math.max(1, this.canvas.clientWidth - this.left); }
  x(time) {
    const {begin, end} = this.chart.view;
    return this.left + (time - begin) / (end - begin) * this.width;
  }
  time(x) {
    const {begin, end} = this.chart.view;
    return begin + (x - this.left) / this.width * (end - begin);
  }

  draw() {
    const begun = performance.now();
    const context = prepare(this.canvas, this.height);
    const {unit} = this.chart.sizes;
    for (const {dp, y} of this.heads) {
      const rank = this.plan.byWork.findIndex((other) => other.dp === dp);
      const note = this.plan.dp === 1 ? "" : rank === 0 ? ", the busiest" : rank === this.plan.dp - 1 ? ", the idlest" : "";
      context.fillStyle = colours.quiet;
      context.fillText(`data-parallel rank ${dp}${note}`, 0, y + RANK_HEAD / 2 + 2);
    }
    for (const lane of this.rows) {
      this.drawLabel(context, lane);
      context.save();
      context.beginPath();
      context.rect(this.left, lane.y, this.width, lane.bottom - lane.y);
      context.clip();
      this.drawUnits(context, lane.row, lane.y, unit);
      this.drawReductions(context, lane);
      if (lane.bottom > lane.top) this.drawMemory(context, lane);
      context.restore();
    }
    if (this.chart.withPath) this.drawPath(context, unit);
    this.drawCursor(context, unit);
    this.took = performance.now() - begun;
  }

  drawLabel(context, {row, y}) {
    const {unit} = this.chart.sizes;
    const middle = y + unit / 2 + 0.5;
    const font = Math.min(11, unit + 1);
    context.font = `${font}px system-ui, sans-serif`;
    context.fillStyle = colours.text;
    context.fillText(this.left > 70 ? `stage ${row.pp}` : `${row.pp}`, 2, middle);
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    context.fillText(Math.round(100 * row.busy / this.plan.span) + " %", this.left - 5, middle);
    context.textAlign = "left";
    context.font = "11px system-ui, sans-serif";
  }

  /** Entries wider than a pixel as they are; thinner ones gathered into a column by their shares. */
  drawUnits(context, row, y, height) {
    const {begin, end} = this.chart.view;
    const scale = this.width / (end - begin);
    const {start, code, count: entries} = row;
    const shares = new Float64Array(colours.codes.length);
    let column = -1;
    const flush = () => {
      if (column < 0) return;
      let sum = 0, low = y + height;
      for (const share of shares) sum += share;
      for (let at = 0; at < shares.length; ++at) {
        if (shares[at] === 0) continue;
        const high = shares[at] / Math.max(sum, 1) * height;
        low -= high;
        context.fillStyle = colours.codes[at];
        context.fillRect(this.left + column, low, 1, high);
        shares[at] = 0;
      }
      column = -1;
    };
    for (let at = lastAtMost(start, begin, entries); at < entries && start[at] < end; ++at) {
      const from = (start[at] - begin) * scale, to = (start[at + 1] - begin) * scale;
      if (to - from < 1) {
        const own = Math.max(0, Math.floor((from + to) / 2));
        if (own !== column) flush();
        column = own;
        shares[code[at]] += to - from;
        continue;
      }
      flush();
      const left = this.left + Math.max(-2, Math.round(from));
      const right = this.left + Math.min(this.width + 2, Math.round(to));
      const wide = Math.max(1, right - left);
      this.drawEntry(context, row, at, left, y, wide > 4 ? wide - 1 : wide, height);
    }
    flush();
  }

  drawEntry(context, row, at, x, y, width, height) {
    const code = row.code[at];
    if (code >= FIRST_GAP || code === 3) {
      context.fillStyle = colours.codes[code];
      context.fillRect(x, y, width, height);
      return;
    }
    const pack = this.plan.packs[row.pack[at]];
    context.globalAlpha = row.chunk[at] === 0 ? 1 : 0.85 - Math.min(row.chunk[at], 4) / 8;
    context.fillStyle = this.chart.byLength && code < 2 ? lengthColour(pack.longest, this.most) : colours.codes[code];
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
    if (pack.merged && height > 5) {
      context.fillStyle = colours.merged;
      context.fillRect(x, y, width, 2);
    }
    if (this.chart.byLength && code === 1) {  // tell the passes apart all the same
      context.fillStyle = colours.page;
      context.fillRect(x, y + height - 3, width, 1);
    }
    if (width < 20 || height < 10) return;
    context.font = `${Math.min(11, height - 2)}px system-ui, sans-serif`;
    const long = `${KINDS[code]} ${row.pack[at]}, ${count(pack.tokens)} tokens`;
    const text = [long, `${KINDS[code]} ${row.pack[at]}`, `${row.pack[at]}`]
      .find((words) => context.measureText(words).width < width - 5);
    if (!text) return;
    context.fillStyle = colours["on-unit"];
    context.fillText(text, x + 3, y + height / 2 + 1);
  }

  drawReductions(context, {row, y}) {
    const {unit, strip} = this.chart.sizes;
    context.fillStyle = colours.reduce;
    for (const bucket of this.plan.reductions[row.pp]) {
      const left = this.x(bucket.begin), right = this.x(bucket.end);
      if (right < this.left || left > this.left + this.width) continue;
      context.fillRect(left, y + unit + 1, Math.max(1, right - left - 0.5), strip - 1);
    }
  }

  /** The curve up to the limit, in each pixel the most that is held in it. */
  drawMemory(context, {row, top, bottom}) {
    const {begin, end} = this.chart.view;
    const most = this.chart.memoryScale;
    const y = (level) => bottom - level / most * (bottom - top);
    const times = row.curveAt, levels = row.curve;
    let at = lastAtMost(times, begin);
    context.fillStyle = colours.held;
    const width = Math.ceil(Math.min(this.width, this.x(this.plan.span) - this.left));
    for (let pixel = 0; pixel < width; ++pixel) {
      const until = begin + (pixel + 1) / this.width * (end - begin);
      let level = levels[at];
      while (at + 1 < times.length && times[at + 1] < until) level = Math.max(level, levels[++at]);
      context.fillRect(this.left + pixel, y(level), 1, bottom - y(level));
    }
    const always = this.plan.always(row.dp, row.pp);
    context.fillStyle = colours.always;
    context.fillRect(this.left, y(always), Math.max(0, width), bottom - y(always));
    context.strokeStyle = colours.limit;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(this.left, y(this.plan.limit) + 0.5);
    context.lineTo(this.left + this.width, y(this.plan.limit) + 0.5);
    context.stroke();
    context.setLineDash([]);
  }

  drawPath(context, unit) {
    context.save();
    context.beginPath();
    context.rect(this.left, 0, this.width, this.height);
    context.clip();
    context.strokeStyle = colours.path;
    context.fillStyle = colours.path;
    context.lineWidth = 1;
    context.beginPath();
    let last = null;
    const right = this.left + this.width;
    for (const step of this.plan.path) {
      if (step.kind > 3) continue;
      const lane = this.byDevice.get(`${step.dp} ${step.pp}`);
      if (!lane) { last = null; continue; }
      const from = this.x(step.begin), to = this.x(step.end);
      const y = lane.y + unit - 1;
      if (last && last.lane !== lane && to >= this.left && last.x <= right) {
        context.moveTo(last.x, last.y);
        context.lineTo(from, y);
      }
      last = {x: to, y, lane};
      if (to < this.left || from > right) continue;
      const height = Math.max(2, Math.min(3, unit / 5));
      context.fillRect(from, lane.y + unit - height, Math.max(1, to - from), height);
    }
    context.stroke();
    context.restore();
  }

  /** Outlines what is under the cursor, and its pack wherever else it runs. */
  drawCursor(context, unit) {
    if (!this.cursor) return;
    const {row, at} = this.cursor;
    context.strokeStyle = colours.chosen;
    const outline = (lane, place, width) => {
      const left = Math.max(this.left, this.x(lane.row.start[place]));
      const right = Math.min(this.left + this.width, this.x(lane.row.start[place + 1]));
      if (right < this.left || left > this.left + this.width) return;
      context.lineWidth = width;
      context.strokeRect(left, lane.y + 0.5, Math.max(1.5, right - left - 1), unit - 1);
    };
    if (row.code[at] < 3) {
      const {begin, end} = this.chart.view;
      for (const lane of this.rows) {
        const other = lane.row;
        for (let place = lastAtMost(other.start, begin, other.count); place < other.count && other.start[place] < end; ++place) {
          if (other.pack[place] === row.pack[at] && other.code[place] === row.code[at]) outline(lane, place, 1);
        }
      }
    }
    const own = this.rows.find((lane) => lane.row === row);
    if (own) outline(own, at, 2);
  }

  /** What is at a point: {lane, at}, or {lane, level} in a memory strip; null outside. */
  hit(x, y) {
    if (x < this.left) return null;
    const {space} = this.chart.sizes;
    const lane = this.rows.find((one) => y >= one.y && y < one.bottom + space);
    if (!lane) return null;
    const time = this.time(x);
    if (time < 0 || time >= this.plan.span) return null;
    if (lane.bottom > lane.top && y >= lane.top) {
      return {lane, time, level: lane.row.curve[lastAtMost(lane.row.curveAt, time)]};
    }
    return {lane, time, at: this.nearest(lane.row, time)};
  }
  /** The entry at an instant; of those too thin to point at, the longest within a pixel. */
  nearest(row, time) {
    let at = lastAtMost(row.start, time, row.count);
    const reach = this.chart.perPixel / 2;
    for (let other = lastAtMost(row.start, time - reach, row.count);
         other < row.count && row.start[other] <= time + reach; ++other) {
      if (row.start[other + 1] - row.start[other] > row.start[at + 1] - row.start[at] &&
          row.start[at + 1] - row.start[at] < 2 * reach) at = other;
    }
    return at;
  }
}
)js";

}  // namespace slimpack::page
