// SPDX-License-Identifier: Apache-2.0
// Numbers, units, gaps and steps of critical paths in words.
"use strict";

const RECOMPUTE = ["nothing recomputed", "light recomputation", "layers recomputed", "everything recomputed"];
const CAUSES = {
  fill: "the pipeline fills: nothing has reached this stage yet",
  drain: "done here, while other stages of this rank still work",
  imbalance: "this rank is done, another one still works",
  reduce: "all work is done, gradients are being reduced",
  peer: "waits for a message of another stage",
  meeting: "waits for the other ranks of a collective",
  window: "waits for a free slot to send",
  memory: "was ready, but did not fit into memory",
  order: "was ready, but the schedule has another unit first",
};
const REASONS = {
  start: "the step begins",
  resource: "the device or link was busy before",
  data: "needed its output",
  window: "a slot or buffer had to become free",
  meeting: "a collective with other ranks",
};

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(made.dataset, value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function decimals(value, digits) {
  return value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
}
/** The most of many values and 1: there may be too many for the arguments of one call. */
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 1);
const count = (value) => value.toLocaleString("en-US");
const percent = (share) => decimals(100 * share, 1) + " %";

/** Nanoseconds with the unit that fits. */
function duration(nanos) {
  const size = Math.abs(nanos);
  if (size >= 1e9) return decimals(nanos / 1e9, 4) + " s";
  if (size >= 1e6) return decimals(nanos / 1e6, 3) + " ms";
  if (size >= 1e3) return decimals(nanos / 1e3, 2) + " \u00b5s";
  return count(nanos) + " ns";
}
function bytes(value) {
  for (const [scale, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) {
    if (Math.abs(value) >= scale) return decimals(value / scale, 2) + " " + unit;
  }
  return count(value) + " B";
}
function listed(values, most) {
  const text = values.slice(0, most).join(", ");
  return values.length > most ? `${text} and ${count(values.length - most)} more` : text;
}

function unitName(code, pack, chunk, plan) {
  if (code === OPTIMIZER) return "O";
  const name = `${KINDS[code]} ${pack}`;
  return runsLayers(code) && plan.chunks > 1 ? `${name} chunk ${chunk}` : name;
}
const place = (dp, pp) => `rank ${dp} stage ${pp}`;

/** The first unit at or behind an entry of a row. */
function unitFrom(row, at) {
  while (at < row.count && row.code[at] >= FIRST_GAP) ++at;
  return at < row.count ? at : null;
}

/** Lines about an entry of a row; the first is the title. */
function describeEntry(plan, row, at) {
  const begin = row.start[at], end = row.start[at + 1];
  const when = `${duration(begin)} to ${duration(end)}: ${duration(end - begin)}`;
  if (row.code[at] >= FIRST_GAP) return describeGap(plan, row, at, when);
  const code = row.code[at];
  const lines = [`${unitName(code, row.pack[at], row.chunk[at], plan)}: ${KIND_NAMES[code]}, ${place(row.dp, row.pp)}`, when];
  if (code !== OPTIMIZER) lines.push(...describePack(plan, row.pack[at]));
  if (plan.onPath.has(`${plan.device(row)} ${begin}`)) lines.push("on the critical path");
  return lines;
}

function describePack(plan, id) {
  const pack = plan.packs[id];
  const lines = [`MicroPack ${id}: ${count(pack.slices.length)} ${pack.slices.length === 1 ? "slice, one sample" : "slices of as many samples"}, ` +
                 `${count(pack.tokens)} tokens`];
  const slices = pack.slices.map((slice) => {
    const whole = plan.samples[slice.sample];
    const all = slice.begin === 0 && slice.end === whole;
    return `${slice.sample}: ${all ? `all ${count(whole)}` : `[${count(slice.begin)}, ${count(slice.end)}) of ${count(whole)}`}`;
  });
  lines.push(`tokens of samples ${listed(slices, 5)}`);
  const ranks = pack.merged ? listed(plan.groups[pack.group], 12) : "";
  if (pack.merged && pack.pass === 2) lines.push(`context-parallel: each of ranks ${ranks} runs its own tokens`);
  else if (pack.merged) lines.push(`context-parallel: ranks ${ranks} run it together`);
  if (pack.pass === 1) lines.push(RECOMPUTE[pack.recompute]);
  if (pack.apart) lines.push("gradients of weights are left to W");
  if (pack.pass === 2) lines.push("gradients of weights that B has left");
  return lines;
}

function describeGap(plan, row, at, when) {
  const cause = page.gapCauses[row.code[at] - FIRST_GAP];
  const instead = row.instead.get(at);
  const other = instead ? unitName(instead.code, instead.pack, instead.chunk, plan) + " " : "";
  const lines = [`idle, ${cause}: ${place(row.dp, row.pp)}`, when, other + CAUSES[cause]];
  const next = unitFrom(row, at);
  if (next === null || ["drain", "imbalance"].includes(cause)) return lines;
  const name = unitName(row.code[next], row.pack[next], row.chunk[next], plan);
  lines.push(`next here: ${name} at ${duration(row.start[next])}`);
  const blockers = row.blockers.get(next) ?? [];
  // For its own part the device waited for the first; the last is what the unit began with.
  const blocker = ["peer", "window"].includes(cause) ? blockers[0] : blockers[blockers.length - 1];
  if (blocker) lines.push(describeBlocker(plan, row, next, blocker));
  return lines;
}

function describeBlocker(plan, row, next, blocker) {
  const pack = (row.code[next] === OPTIMIZER ? 0 : row.pack[next]) + blocker.packBy;
  const end = duration(blocker.end);
  if (blocker.kind === REDUCE) return `it needs the gradients of chunk ${blocker.chunk}, reduced at ${end}`;
  if (blocker.kind === TRANSFER) {
    const unit = unitName(plan.packs[pack].pass, pack, blocker.chunk, plan);
    const took = `${end}, ${duration(blocker.took)} under way`;
    if (blocker.dp === row.dp && blocker.pp === row.pp) {
      return `it needs a slot that the message of ${unit} to stage ${blocker.toPp} left at ${took}`;
    }
    const to = blocker.dp === row.dp && blocker.toPp === row.pp ? "here" : `at ${place(blocker.dp, blocker.toPp)}`;
    return `last came the message of ${unit} from ${place(blocker.dp, blocker.pp)}, ${to} at ${took}`;
  }
  if (blocker.kind >= TRANSFER) return `it needs what was done at ${end}`;
  const unit = unitName(blocker.kind, pack, blocker.chunk, plan);
  return `last was ${place(blocker.dp, blocker.pp)}, busy with ${unit} until ${end}`;
}

/** A step of the critical path: name, and why it did not start earlier. */
function describeStep(plan, step) {
  const reason = REASONS[page.pathReasons[step.reason]];
  if (step.kind === TRANSFER) {
    const unit = unitName(plan.packs[step.pack].pass, step.pack, step.chunk, plan);
    return {name: `message of ${unit} to stage ${step.other}`, where: place(step.dp, step.pp), reason};
  }
  if (step.kind === REDUCE) {
    return {name: `R chunk ${step.chunk}, bucket ${step.other}`, where: `stage ${step.pp}`, reason};
  }
  const code = step.kind <= REDUCE ? step.kind : plan.packs[step.pack].pass === 2 ? KINDS.indexOf("W") : 1;
  const part = step.kind > REDUCE ? "part of " : "";
  return {name: part + unitName(code, step.pack, step.chunk, plan), where: place(step.dp, step.pp), reason};
}
