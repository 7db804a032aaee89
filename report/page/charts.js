// SPDX-License-Identifier: Apache-2.0
// Bars of memory, times and work; what critical paths consist of.
"use strict";

/**
 * Stacked or overlaid bars on a canvas, told by pointer and arrow keys in a line below. `facts`: bars
 * ({parts, words}), most (of the scale), format, colours (a function), line ({at, words}), overlaid.
 */
class Bars {
  constructor(title, facts) {
    this.facts = facts;
    this.chosen = -1;
    this.canvas = element("canvas", {tabIndex: 0, role: "img"});
    this.canvas.setAttribute("aria-label", `${title}. ${facts.note} Arrow keys go from bar to bar.`);
    this.note = element("div", {className: "note", textContent: facts.note});
    this.box = element("div", {className: "card"}, element("h3", {textContent: title}), this.canvas, this.note);
    this.canvas.addEventListener("pointermove", (event) => {
      this.choose(Math.floor((event.offsetX - this.left) / this.wide * facts.bars.length));
    });
    this.canvas.addEventListener("pointerleave", () => this.choose(-1));
    this.canvas.addEventListener("blur", () => this.choose(-1));
    this.canvas.addEventListener("keydown", (event) => {
      const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!by) return;
      event.preventDefault();
      this.choose(Math.min(facts.bars.length - 1, Math.max(0, this.chosen + by)));
    });
  }
  choose(at) {
    const chosen = at >= 0 && at < this.facts.bars.length ? at : -1;
    if (chosen === this.chosen) return;
    this.chosen = chosen;
    this.note.textContent = chosen < 0 ? this.facts.note : this.facts.bars[chosen].words;
    this.draw();
  }
  get left() { return 58; }
  get wide() { return Math.max(1, this.canvas.clientWidth - this.left - 4); }

  draw() {
    const {bars, most, line, overlaid, format} = this.facts;
    const height = 130, foot = this.facts.foot ? 16 : 4, top = 8;
    const context = prepare(this.canvas, height);
    const y = (value) => height - foot - value / most * (height - foot - top);
    context.strokeStyle = colours.line;
    context.fillStyle = colours.quiet;
    for (let tick = 0; tick <= 2; ++tick) {
      const value = most * tick / 2;
      context.beginPath();
      context.moveTo(this.left, Math.round(y(value)) + 0.5);
      context.lineTo(this.left + this.wide, Math.round(y(value)) + 0.5);
      context.stroke();
      context.textAlign = "right";
      context.fillText(format(value), this.left - 4, Math.max(7, y(value)));
      context.textAlign = "left";
    }
    const palette = this.facts.colours();
    const each = this.wide / bars.length;
    // Bars thinner than a pixel: the highest of each pixel stands for it.
    const total = (bar) => overlaid ? Math.max(...bar.parts) : bar.parts.reduce((a, b) => a + b, 0);
    for (let at = 0; at < bars.length;) {
      const pixel = Math.floor(at * each);
      let tallest = at;
      for (; at < bars.length && (each >= 1 ? at === tallest : Math.floor(at * each) === pixel); ++at) {
        if (total(bars[at]) > total(bars[tallest])) tallest = at;
      }
      this.drawBar(context, bars[tallest], tallest, each, y, palette);
    }
    if (line) {
      context.strokeStyle = colours.limit;
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(this.left, y(line) + 0.5);
      context.lineTo(this.left + this.wide, y(line) + 0.5);
      context.stroke();
      context.setLineDash([]);
    }
    if (this.facts.foot) {
      context.fillStyle = colours.quiet;
      context.fillText(this.facts.foot[0], this.left, height - 7);
      context.textAlign = "right";
      context.fillText(this.facts.foot[1], this.left + this.wide, height - 7);
      context.textAlign = "left";
    }
  }
  drawBar(context, bar, at, each, y, palette) {
    const width = Math.max(1, each > 3 ? each - 1 : each);
    const x = this.left + at * each;
    let below = 0;
    bar.parts.forEach((value, part) => {
      if (value === 0) return;
      const low = this.facts.overlaid ? 0 : below;
      context.fillStyle = palette[part];
      context.globalAlpha = this.facts.overlaid ? 0.65 : 1;
      context.fillRect(x, y(low + value), width, y(low) - y(low + value));
      below += value;
    });
    context.globalAlpha = 1;
    if (at === this.chosen) {
      context.strokeStyle = colours.chosen;
      context.strokeRect(x, y(this.facts.most), width, y(0) - y(this.facts.most));
    }
  }
}

function memoryBars(plan, most) {
  const bars = plan.peaks.map((peak, device) => {
    const parts = page.memoryKinds.map((kind, at) => [kind, peak.kinds[at]]).filter(([, held]) => held > 0)
      .sort((a, b) => b[1] - a[1]).map(([kind, held]) => `${kind} ${bytes(held)}`);
    // From the bottom: what is always there, then the rest.
    const order = [10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7].map((kind) => peak.kinds[kind]);
    return {parts: order, words: `${place(Math.floor(device / plan.pp), device % plan.pp)}: ${bytes(peak.bytes)} at ${duration(peak.at)}: ${parts.join(", ")}`};
  });
  const highest = largest(plan.peaks.map((peak) => peak.bytes));
  return new Bars(plan.planner, {
    bars, most, line: plan.limit, format: bytes,
    colours: () => [10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7].map((kind) => colours.kinds[kind]),
    note: `peak ${bytes(highest)} of ${bytes(plan.limit)} (${percent(highest / plan.limit)}), ${count(bars.length)} devices by rank, then stage`,
  });
}

function workBars(plan, most) {
  const sums = plan.work.map((parts) => parts.reduce((a, b) => a + b, 0) / plan.pp);
  const mean = sums.reduce((a, b) => a + b, 0) / sums.length;
  const bars = plan.work.map((parts, dp) => ({
    parts: parts.map((part) => part / plan.pp),
    words: `rank ${dp}: a stage works ${duration(sums[dp])} on average (${percent(sums[dp] / plan.span)} of the step): ` +
      KIND_NAMES.map((name, at) => `${name} ${duration(parts[at] / plan.pp)}`)
        .filter((_, at) => at < KIND_NAMES.length - 1 || plan.weightTimes.length > 0).join(", "),
  }));
  return new Bars(plan.planner, {
    bars, most, line: plan.span, format: duration,
    colours: () => colours.codes.slice(0, KINDS.length),
    note: `most over mean ${decimals(Math.max(...sums) / mean, 4)}; the line is the step, ${duration(plan.span)}`,
  });
}

function timeBars(plan) {
  const passes = [["forward", plan.forwardTimes], ["backward", plan.backwardTimes]];
  if (plan.weightTimes.length > 0) passes.push(["weight", plan.weightTimes]);
  const most = Math.max(...passes.map(([, times]) => largest(times)));
  const bins = 48;
  const bars = Array.from({length: bins}, (_, at) => ({parts: passes.map(() => 0), from: at * most / bins, to: (at + 1) * most / bins}));
  passes.forEach(([, times], pass) => {
    for (const time of times) ++bars[Math.min(bins - 1, Math.floor(time / most * bins))].parts[pass];
  });
  for (const bar of bars) {
    bar.words = `${duration(bar.from)} to ${duration(bar.to)}: ` +
      passes.map(([name], pass) => `${count(bar.parts[pass])} ${name}`).join(" and ") + " MicroPacks";
  }
  const spread = (times) => {
    if (times.length === 0) return "none";
    const mean = times.reduce((a, b) => a + b, 0) / times.length;
    const variance = times.reduce((sum, time) => sum + (time - mean) ** 2, 0) / times.length;
    return `${count(times.length)}, mean ${duration(mean)}, CV ${decimals(mean > 0 ? Math.sqrt(variance) / mean : 0, 3)}`;
  };
  return new Bars(plan.planner, {
    bars, overlaid: true, most: Math.max(1, ...bars.flatMap((bar) => bar.parts)), format: (value) => count(Math.round(value)),
    colours: () => passes.map(([name]) => colours[name]), foot: ["0", duration(most)],
    note: passes.map(([name, times]) => `${name} ${spread(times)}`).join("; "),
  });
}

/** Steps of a path, units that follow each other on one device gathered into one: {first, last, count}. */
function stretches(path) {
  const gathered = [];
  for (const step of path) {
    const {first, last} = gathered[gathered.length - 1] ?? {};
    const follows = last && step.kind < TRANSFER && last.kind < TRANSFER && step.dp === first.dp && step.pp === first.pp;
    if (!follows) {
      gathered.push({first: step, last: step, count: 1});
      continue;
    }
    gathered[gathered.length - 1].last = step;
    ++gathered[gathered.length - 1].count;
  }
  return gathered;
}

/** What the critical paths consist of, a bar a plan, and the steps of the plan that is chosen. */
function showPaths(plans, box, reveal) {
  const longest = largest(plans.map((plan) => plan.span));
  const shade = {forward: "forward", backward: "backward", head: "head", optimizer: "optimizer", transfer: "gap-peer", reduce: "reduce",
                 weight: "weight"};
  const choice = element("select", {id: "path-of"});
  choice.setAttribute("aria-label", "planner whose critical path is listed");
  plans.forEach((plan, at) => {
    const bar = element("div", {className: "share"});
    const words = [];
    plan.path_time.forEach((time, work) => {
      if (time === 0) return;
      const part = element("span", {title: `${page.pathWorks[work]} ${duration(time)}`});
      part.style.width = 100 * time / longest + "%";
      part.style.background = `var(--${shade[page.pathWorks[work]]})`;
      bar.append(part);
      words.push(`${page.pathWorks[work]} ${duration(time)}`);
    });
    box.append(element("div", {}, element("b", {textContent: plan.planner}),
      element("span", {className: "quiet", textContent: `  ${duration(plan.span)} in ${count(plan.path.length)} steps: ${words.join(", ")}`}), bar));
    choice.append(element("option", {value: at, textContent: plan.planner}));
  });
  const body = element("tbody");
  const more = element("p", {className: "quiet"});
  const list = () => {
    const plan = plans[choice.value];
    const most = 1000;
    const all = stretches(plan.path);
    body.replaceChildren(...all.slice(0, most).map(({first, last, count: units}) => {
      const {name, where, reason} = describeStep(plan, first);
      const step = {...first, end: last.end};
      const words = units === 1 ? name : `${name} to ${describeStep(plan, last).name}, ${count(units)} units`;
      const link = element("a", {href: "#timelines", className: "step", textContent: words});
      link.addEventListener("click", (event) => { event.preventDefault(); reveal(plan, step); });
      return element("tr", {}, element("td", {}, link), element("td", {className: "text", textContent: where}),
        element("td", {textContent: duration(step.begin)}), element("td", {textContent: duration(step.end - step.begin)}),
        element("td", {className: "text", textContent: reason}));
    }));
    more.textContent = all.length > most ? `The first ${count(most)} of ${count(all.length)} stretches; the timeline shows all.` : "";
  };
  choice.addEventListener("change", list);
  const head = element("tr", {}, ...[["step"], ["where", "text"], ["starts"], ["takes"], ["why not earlier", "text"]]
    .map(([words, style]) => element("th", {textContent: words, className: style ?? ""})));
  box.append(element("div", {className: "row"}, element("label", {}, "steps of ", choice)),
    element("div", {className: "scroll tall", tabIndex: 0}, element("table", {}, element("thead", {}, head), body)), more);
  list();
}
