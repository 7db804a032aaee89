// SPDX-License-Identifier: Apache-2.0
// The lanes of one plan on a canvas.
"use strict";

const RANK_HEAD = 22;  // pixels above the lanes of a rank

/** "#2f7ed8" as three numbers. */
const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
/** A colour on paper, as one pixel of an image. */
function mixed(colour, strong) {
  let pixel = 255;
  for (let part = 2; part >= 0; --part) {
    pixel = pixel * 256 + Math.round(colour[part] * strong + colours.paper[part] * (1 - strong));
  }
  return pixel;
}

/** Colours of the style sheet, read again when the scheme changes. */
const colours = {
  read() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    this.codes = [...KIND_NAMES, ...page.gapCauses.map((cause) => "gap-" + cause)].map(colour);
    this.kinds = page.memoryKinds.map((_, at) => colour("kind-" + at));
    this.numbers = this.codes.map(rgb);
    this.paper = rgb(colour("page"));
    for (const name of ["page", "panel", "text", "quiet", "line", "accent", "reduce", "on-unit", "merged", "path", "chosen",
                        "held", "always", "limit", "forward", "backward", "weight"]) this[name] = colour(name);
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

/** Longer samples stand out: blue to so many tokens, red at the longest of the page. */
const SHORT = 4096;
function lengthColour(longest, most) {
  const low = Math.log2(SHORT), high = Math.max(low + 1, Math.log2(most));
  const share = Math.min(1, Math.max(0, (Math.log2(Math.max(1, longest)) - low) / (high - low)));
  return `hsl(${Math.round(225 - 225 * share)} 62% ${Math.round(58 - 8 * share)}%)`;
}

/** Later chunks are paler. */
const strength = (chunk) => chunk === 0 ? 1 : 0.85 - Math.min(chunk, 4) / 8;

/** What is too thin to draw, as columns of device pixels whose heights are shares of their time. */
class Columns {
  constructor() {
    this.column = -1;
    this.shares = new Float64Array(page.gapCauses.length + FIRST_GAP);
    this.strengths = new Float64Array(this.shares.length);
  }
  /** For a canvas that is drawn anew. */
  begin(context) {
    const {width, height} = context.canvas;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    } else if (this.used) {
      this.pixels.fill(0);
    }
    this.used = false;
  }
  /** The lane that columns are of, in device pixels. Columns of a lane rise. */
  lane(top, height, right) {
    Object.assign(this, {top, high: height, right});
  }
  add(x, share, code, strong) {
    const column = Math.min(this.right - 1, Math.floor(x));
    if (column !== this.column) this.flush();
    this.column = column;
    this.shares[code] += share;
    this.strengths[code] += share * strong;
  }
  flush() {
    if (this.column < 0) return;
    const {shares, strengths, pixels, image, top, high} = this;
    let sum = 0, below = 0;
    for (const share of shares) sum += share;
    let low = high;
    for (let code = 0; code < shares.length; ++code) {
      if (shares[code] === 0) continue;
      below += shares[code];
      const colour = mixed(colours.numbers[code], strengths[code] / shares[code]);
      const until = Math.max(-top, Math.round(high * (1 - below / sum)));
      while (low > until) {
        --low;
        if (top + low < image.height) pixels[(top + low) * image.width + this.column] = colour;
      }
      shares[code] = strengths[code] = 0;
    }
    this.column = -1;
    this.used = true;
  }
  show(context) {
    if (this.used) context.putImageData(this.image, 0, 0);
  }
}

/** Draws and hit-tests the lanes of one plan. `chart` is the Timelines that it belongs to. */
class Lanes {
  /** `canvas` lies in `box`, which is as high as all lanes; it covers what the window shows of them. */
  constructor(chart, plan, box, canvas) {
    this.chart = chart;
    this.plan = plan;
    this.box = box;
    this.canvas = canvas;
    this.columns = new Columns();
    this.offset = 0;  // of the canvas in the box
    this.cursor = null;  // {row, at}: under the pointer or chosen by keys
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
    this.measure();
    for (const dp of this.ranks) {
      this.heads.push({dp, y});
      y += RANK_HEAD;
      for (const row of this.plan.rank(dp).rows) {
        this.rows.push({row, y, top: y + unit + strip, bottom: y + unit + strip + memory});
        y += unit + strip + memory + space;
      }
    }
    this.height = y;
    this.box.style.height = y + "px";
    this.byDevice = new Map(this.rows.map((lane) => [this.plan.device(lane.row), lane]));
  }

  get left() { return this.chart.left; }
  /** Pixels of the whole view. Kept, because asking the page makes it lay itself out. */
  measure() { this.width = Math.max(1, this.box.clientWidth - this.left); }
  x(time) {
    const {begin, end} = this.chart.view;
    return this.left + (time - begin) / (end - begin) * this.width;
  }
  time(x) {
    const {begin, end} = this.chart.view;
    return begin + (x - this.left) / this.width * (end - begin);
  }

  /** Whether the window shows a part that the canvas does not cover. */
  get uncovered() {
    const {top, bottom} = this.box.getBoundingClientRect();
    const from = Math.max(0, -top), to = Math.min(this.height, window.innerHeight - top);
    return from < to && (from < this.offset || to > this.offset + this.canvas.clientHeight) && bottom > 0;
  }

  draw() {
    this.measure();
    const margin = 240;
    const high = Math.min(this.height, window.innerHeight + 2 * margin);
    this.offset = Math.round(Math.min(this.height - high, Math.max(0, -this.box.getBoundingClientRect().top - margin)));
    this.canvas.style.top = this.offset + "px";
    const context = prepare(this.canvas, high);
    context.translate(0, -this.offset);
    const {unit, space} = this.chart.sizes;
    const inside = (from, to) => to > this.offset && from < this.offset + high;
    const shown = this.rows.filter((lane) => inside(lane.y, lane.bottom + space));
    const wide = this.gather(context, shown, unit);
    for (const {dp, y} of this.heads) {
      if (!inside(y, y + RANK_HEAD)) continue;
      const rank = this.plan.byWork.findIndex((other) => other.dp === dp);
      const note = this.plan.dp === 1 ? "" : rank === 0 ? ", the busiest" : rank === this.plan.dp - 1 ? ", the idlest" : "";
      context.fillStyle = colours.quiet;
      context.fillText(`data-parallel rank ${dp}${note}`, 0, y + RANK_HEAD / 2);
    }
    this.drawLabels(context, shown);
    context.save();
    context.beginPath();
    context.rect(this.left, this.offset, this.width, high);
    context.clip();
    context.font = `${Math.min(11, unit - 2)}px system-ui, sans-serif`;
    shown.forEach((lane, at) => {
      this.drawUnits(context, lane.row, wide[at], lane.y, unit);
      this.drawReductions(context, lane);
      if (lane.bottom > lane.top) this.drawMemory(context, lane);
    });
    if (this.chart.withPath) this.drawPath(context, unit, inside);
    this.drawCursor(context, unit, shown);
    context.restore();
  }

  drawLabels(context, shown) {
    const {unit} = this.chart.sizes;
    context.font = `${Math.min(11, unit + 1)}px system-ui, sans-serif`;
    context.fillStyle = colours.text;
    const name = this.left > 70 ? "stage " : "";
    for (const {row, y} of shown) context.fillText(name + row.pp, 2, y + unit / 2 + 0.5);
    context.fillStyle = colours.quiet;
    context.textAlign = "right";
    for (const {row, y} of shown) {
      context.fillText(Math.round(100 * row.busy / this.plan.span) + " %", this.left - 5, y + unit / 2 + 0.5);
    }
    context.textAlign = "left";
  }

  /** Entries thinner than a pixel, of all lanes, go into columns. Returns the places of the others. */
  gather(context, shown, height) {
    const {begin, end} = this.chart.view;
    const scale = this.width / (end - begin);
    const ratio = window.devicePixelRatio || 1;
    this.columns.begin(context);
    const wide = shown.map(({row, y}) => {
      const {start, code, chunk, count: entries} = row;
      const places = [];
      this.columns.lane(Math.round((y - this.offset) * ratio), Math.round(height * ratio), Math.floor((this.left + this.width) * ratio));
      for (let at = lastAtMost(start, begin, entries); at < entries && start[at] < end; ++at) {
        const from = (start[at] - begin) * scale, to = (start[at + 1] - begin) * scale;
        if (to - from >= 1) places.push(at);
        else this.columns.add((this.left + Math.max(0, (from + to) / 2)) * ratio, to - from, code[at], strength(chunk[at]));
      }
      this.columns.flush();
      return places;
    });
    this.columns.show(context);
    return wide;
  }

  drawUnits(context, row, places, y, height) {
    const {begin, end} = this.chart.view;
    const scale = this.width / (end - begin);
    for (const at of places) {
      const left = this.left + Math.max(-2, Math.round((row.start[at] - begin) * scale));
      const right = this.left + Math.min(this.width + 2, Math.round((row.start[at + 1] - begin) * scale));
      const width = Math.max(1, right - left);
      this.drawEntry(context, row, at, left, y, width > 4 ? width - 1 : width, height);
    }
  }

  drawEntry(context, row, at, x, y, width, height) {
    const code = row.code[at];
    if (code >= FIRST_GAP || code === OPTIMIZER) {
      context.fillStyle = colours.codes[code];
      context.fillRect(x, y, width, height);
      return;
    }
    const pack = this.plan.packs[row.pack[at]];
    context.globalAlpha = strength(row.chunk[at]);
    context.fillStyle = this.chart.byLength && runsLayers(code) ? lengthColour(pack.longest, this.chart.longest) : colours.codes[code];
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
    if (pack.merged && height > 5) {
      context.fillStyle = colours.merged;
      context.fillRect(x, y, width, 2);
    }
    if (this.chart.byLength && runsLayers(code) && code > 0) {  // tell the passes apart all the same
      context.fillStyle = colours.page;
      context.fillRect(x, y + height - 3, width, 1);
    }
    if (width < 20 || height < 10) return;
    const number = String(row.pack[at]);
    const font = Math.min(11, height - 2), fits = (width - 5) / (0.6 * font);  // characters
    if (number.length > fits) return;
    let text = number.length + 2 > fits ? number : `${KINDS[code]} ${number}`;
    if (fits > 28 && this.plan.chunks > 1 && runsLayers(code)) text += ` chunk ${row.chunk[at]}`;
    if (fits > 36) text += `, ${count(pack.tokens)} tokens`;
    context.fillStyle = strength(row.chunk[at]) < 0.7 ? colours.text : colours["on-unit"];
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
    context.beginPath();
    context.moveTo(this.left, bottom);
    let drawn = null;
    for (let pixel = 0; pixel < width; ++pixel) {
      const until = begin + (pixel + 1) / this.width * (end - begin);
      let level = levels[at];
      while (at + 1 < times.length && times[at + 1] < until) level = Math.max(level, levels[++at]);
      if (level === drawn) continue;
      if (drawn !== null) context.lineTo(this.left + pixel, y(drawn));
      context.lineTo(this.left + pixel, y(level));
      drawn = level;
    }
    context.lineTo(this.left + width, y(drawn ?? 0));
    context.lineTo(this.left + width, bottom);
    context.fill();
    const always = this.plan.always(row);
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

  drawPath(context, unit, inside) {
    const {begin, end} = this.chart.view;
    const {path, pathBegins} = this.plan;
    const height = Math.max(2, Math.min(3, unit / 5));
    context.strokeStyle = colours.path;
    context.fillStyle = colours.path;
    context.lineWidth = 1;
    context.beginPath();
    let last = null;
    // A transfer or two lie between units: begin a few steps early, so that lines enter the view.
    for (let at = Math.max(0, lastAtMost(pathBegins, begin) - 8); at < path.length; ++at) {
      const step = path[at];
      if (step.kind === TRANSFER || step.kind === REDUCE) continue;
      const lane = this.byDevice.get(this.plan.device(step));
      if (!lane) { last = null; continue; }
      const from = this.x(step.begin), to = this.x(step.end);
      const y = lane.y + unit - 1;
      if (last && last.lane !== lane && inside(Math.min(y, last.y), Math.max(y, last.y))) {
        context.moveTo(last.x, last.y);
        context.lineTo(from, y);
      }
      last = {x: to, y, lane};
      if (step.begin > end) break;
      if (inside(lane.y, y)) context.fillRect(from, lane.y + unit - height, Math.max(1, to - from), height);
    }
    context.stroke();
  }

  /** Outlines what is under the cursor, and its pack wherever else it runs. */
  drawCursor(context, unit, shown) {
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
    if (row.code[at] < FIRST_GAP && row.code[at] !== OPTIMIZER) {
      const {begin, end} = this.chart.view;
      for (const lane of shown) {
        const other = lane.row;
        for (let place = lastAtMost(other.start, begin, other.count); place < other.count && other.start[place] < end; ++place) {
          if (other.pack[place] === row.pack[at] && other.code[place] === row.code[at]) outline(lane, place, 1);
        }
      }
    }
    const own = shown.find((lane) => lane.row === row);
    if (own) outline(own, at, 2);
  }

  /** What is at a point of the canvas: {lane, at}, or {lane, level} in a memory strip; null outside. */
  hit(x, canvasY) {
    const y = canvasY + this.offset;
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
