// SPDX-License-Identifier: Apache-2.0
// Reads the plans that the page carries as packed numbers.
"use strict";

const KINDS = ["F", "B", "H", "O", "W"];
const KIND_NAMES = ["forward", "backward", "head", "optimizer", "weight"];
const HEAD = 2, OPTIMIZER = 3, FIRST_GAP = 5;
const TIMED = 16, BLOCKED = 32, CHUNKED = 64, INSTEAD = 16;
// Kinds of nodes beyond those of units.
const TRANSFER = 5, REDUCE = 6;
/** Whether units of a kind run the layers of a chunk. */
const runsLayers = (code) => code !== HEAD && code !== OPTIMIZER;

/** Numbers as src/packed_bytes.hpp writes them. */
class Reader {
  constructor(text) {
    const raw = atob(text);
    this.bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; ++at) this.bytes[at] = raw.charCodeAt(at);
    this.at = 0;
  }
  unsigned() {
    let byte = this.bytes[this.at++];
    if (byte < 128) return byte;
    let value = 0, scale = 1;
    for (; byte >= 128; byte = this.bytes[this.at++]) {
      value += (byte - 128) * scale;
      scale *= 128;
    }
    return value + byte * scale;
  }
  signed() {
    const value = this.unsigned();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
  list(read) {
    const count = this.unsigned();
    const values = new Array(count);
    for (let at = 0; at < count; ++at) values[at] = read(at);
    return values;
  }
}

/** One plan of the page. Timelines are unpacked when a rank is first shown. */
class Plan {
  constructor(data) {
    Object.assign(this, data);
    this.stages = data.pp;
    this.packed = new Map(data.ranks.map((rank) => [rank.dp, rank]));
    this.shown = new Map();
    const samples = new Reader(data.samples);
    this.samples = samples.list(() => samples.signed());
    this.tokens = this.samples.reduce((sum, length) => sum + length, 0);
    this.forwardTimes = Plan.times(data.forward_times);
    this.backwardTimes = Plan.times(data.backward_times);
    this.weightTimes = Plan.times(data.weight_times);
    this.readPacks(new Reader(data.packs));
    this.readPeaks(new Reader(data.peaks));
    this.readReductions(new Reader(data.reductions));
    this.readPath(new Reader(data.path));
    const work = new Reader(data.rank_work);
    this.work = Array.from({length: data.dp}, () => KINDS.map(() => work.signed()));
    this.byWork = this.work.map((parts, dp) => ({dp, sum: parts.reduce((a, b) => a + b, 0)}))
      .sort((a, b) => b.sum - a.sum || a.dp - b.dp);
  }

  /** The number of a device, from anything that has a rank and a stage. */
  device({dp, pp}) { return dp * this.pp + pp; }

  static times(text) {
    const reader = new Reader(text);
    return reader.list(() => reader.signed());
  }

  readPacks(reader) {
    this.packs = reader.list(() => {
      const flags = reader.unsigned();
      const group = reader.unsigned();
      let sample = 0, tokens = 0, longest = 0;
      const slices = reader.list(() => {
        sample += reader.signed();
        const begin = reader.signed();
        const length = reader.signed();
        tokens += length;
        longest = Math.max(longest, this.samples[sample]);
        return {sample, begin, end: begin + length};
      });
      return {pass: flags & 3, apart: (flags & 4) !== 0, recompute: flags >> 3, group, slices, tokens, longest,
              merged: this.groups[group].length > 1};
    });
  }

  readPeaks(reader) {
    this.peaks = [];
    for (let device = 0; device < this.dp * this.pp; ++device) {
      const at = reader.signed();
      const kinds = page.memoryKinds.map(() => reader.signed());
      this.peaks.push({at, kinds, bytes: kinds.reduce((a, b) => a + b, 0)});
    }
  }

  /** Bytes that a device holds all the time: the last three kinds. */
  always(row) {
    return this.peaks[this.device(row)].kinds.slice(-3).reduce((a, b) => a + b, 0);
  }

  readReductions(reader) {
    this.reductions = Array.from({length: this.pp}, () => []);
    reader.list(() => {
      const pp = reader.unsigned();
      const bucket = {chunk: reader.unsigned(), bucket: reader.unsigned(), begin: reader.signed()};
      bucket.end = bucket.begin + reader.signed();
      this.reductions[pp].push(bucket);
    });
  }

  readPath(reader) {
    let dp = 0, pp = 0, pack = 0;
    this.path = reader.list(() => {
      const head = reader.unsigned();
      dp += reader.signed();
      pp += reader.signed();
      pack += reader.signed();
      const step = {kind: head % 16, reason: head >> 4, dp, pp, pack, chunk: reader.unsigned()};
      step.other = reader.unsigned();
      step.begin = reader.signed();
      step.end = step.begin + reader.signed();
      return step;
    });
    this.pathBegins = this.path.map((step) => step.begin);
    this.onPath = new Set(this.path.map((step) => `${this.device(step)} ${step.begin}`));
  }

  /** Rows of a rank's stages: entry at `at` lasts from start[at] to start[at + 1]. */
  rank(dp) {
    let rank = this.shown.get(dp);
    if (rank) return rank;
    const packed = this.packed.get(dp);
    const reader = new Reader(packed.rows);
    const seen = new Float64Array(KINDS.length * this.packs.length);
    const rows = [];
    for (let pp = 0; pp < this.pp; ++pp) rows.push(this.readRow(reader, seen, dp, pp));
    this.readCurves(new Reader(packed.memory), rows);
    rank = {dp, rows};
    this.shown.set(dp, rank);
    return rank;
  }

  readRow(reader, seen, dp, pp) {
    const count = reader.unsigned();
    const row = {dp, pp, count, start: new Float64Array(count + 1), code: new Uint8Array(count),
                 pack: new Int32Array(count), chunk: new Uint16Array(count), blockers: new Map(), instead: new Map(),
                 busy: 0, units: 0};
    const last = KINDS.map(() => 0);
    let now = 0;
    for (let at = 0; at < count; ++at) {
      row.start[at] = now;
      const head = reader.unsigned();
      const code = head & 15;
      row.code[at] = code;
      row.pack[at] = -1;
      if (code >= FIRST_GAP) {
        now += reader.signed();
        if (head & INSTEAD) row.instead.set(at, {code: reader.unsigned(), pack: reader.unsigned(), chunk: reader.unsigned()});
        continue;
      }
      if (code !== OPTIMIZER) {
        last[code] += reader.signed();
        row.pack[at] = last[code];
      }
      if (head & CHUNKED) row.chunk[at] = reader.unsigned();
      const key = KINDS.length * row.pack[at] + code;
      const duration = head & TIMED ? reader.signed() : seen[key];
      if (code !== OPTIMIZER) seen[key] = duration;
      if (head & BLOCKED) row.blockers.set(at, reader.list(() => this.readBlocker(reader, row, now)));
      now += duration;
      row.busy += duration;
      ++row.units;
    }
    row.start[count] = now;
    return row;
  }

  /** What a unit waited for: a node that ended at `end`. The last of a unit's is the last that it needed. */
  readBlocker(reader, row, start) {
    const blocker = {kind: reader.unsigned()};
    blocker.dp = row.dp + reader.signed();
    blocker.pp = row.pp + reader.signed();
    blocker.packBy = reader.signed();
    blocker.chunk = reader.unsigned();
    if (blocker.kind === TRANSFER) {
      blocker.toPp = row.pp + reader.signed();
      blocker.took = reader.signed();
    }
    blocker.end = start - reader.signed();
    return blocker;
  }

  readCurves(reader, rows) {
    for (const row of rows) {
      const count = reader.unsigned();
      row.curveAt = new Float64Array(count);
      row.curve = new Float64Array(count);
      let at = 0, level = 0;
      for (let point = 0; point < count; ++point) {
        at += reader.signed();
        row.curveAt[point] = at * this.tick;
        level += reader.signed();
        row.curve[point] = level * this.quantum;
      }
    }
  }
}

/** The last index whose value is at most `value`, 0 if there is none; `values` rise. */
function lastAtMost(values, value, count = values.length) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1; else high = middle;
  }
  return Math.max(0, low - 1);
}
