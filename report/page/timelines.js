// SPDX-License-Identifier: Apache-2.0
// All plans on one time axis: zoom, pan, pointer and keys.
"use strict";

const LANE_SIZES = {small: {unit: 7, memory: 9, space: 2}, medium: {unit: 14, memory: 16, space: 4}, large: {unit: 24, memory: 34, space: 8}};

/** The timelines of all plans: one view, one cursor, one canvas a plan. */
class Timelines {
  constructor(plans, box) {
    this.plans = plans;
    this.span = largest(plans.map((plan) => plan.span));
    this.view = {begin: 0, end: this.span};
    this.memoryScale = largest(plans.flatMap((plan) => [plan.limit, ...plan.peaks.map((peak) => peak.bytes)]));
    this.hasReductions = plans.some((plan) => plan.reductions.some((buckets) => buckets.length > 0));
    this.longest = largest(plans.map((plan) => largest(plan.samples)));
    this.lanes = [];
    this.pointers = new Map();
    this.frame = {count: 0, took: 0};
    this.readControls();
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) entry.target.lanes.visible = entry.isIntersecting;
      this.draw();
    }, {rootMargin: "200px"});
    for (const plan of plans) box.append(this.planBox(plan));
    const total = this.lanes.reduce((sum, lanes) => sum + lanes.ranks.length * lanes.plan.pp, 0);
    byId("size").value = total > 96 ? "small" : "medium";
    byId("memories").checked = total <= 48;
    this.axis = byId("axis");
    this.overview = byId("overview");
    this.connect();
    this.resize();
  }

  readControls() {
    const size = LANE_SIZES[byId("size").value];
    const memory = byId("memories").checked ? size.memory : 0;
    this.sizes = {...size, memory, strip: this.hasReductions ? 4 : 0};
    this.withPath = byId("paths").checked;
    this.byLength = byId("colour").value === "length";
    const key = byId("length-key");
    key.hidden = !this.byLength;
    key.textContent = `wide units by the longest sample of their MicroPack: blue to ${count(SHORT)} tokens, red from ${count(this.longest)}; backward and weight with a line below`;
    this.left = window.innerWidth < 640 ? 48 : 92;
  }

  planBox(plan) {
    const canvas = element("canvas", {className: "lanes", tabIndex: 0, role: "application"});
    canvas.setAttribute("aria-label", `Timeline of ${plan.planner}. Arrow keys go from unit to unit, plus and minus zoom, a and d pan, 0 shows all.`);
    const holder = element("div", {className: "holder"}, canvas);
    const lanes = holder.lanes = new Lanes(this, plan, holder, canvas);
    this.lanes.push(lanes);
    this.seen.observe(holder);
    const toggle = element("button", {textContent: "\u25BE " + plan.planner, type: "button"});
    toggle.setAttribute("aria-expanded", "true");
    const result = page.comparison.results.find((row) => row.planner === plan.planner && row.step === plan.step && row.feasible);
    const facts = [duration(plan.span)];
    if (result) {
      facts.push(`efficiency ${percent(result.efficiency)}`, `idle ${percent(result.bubble)}`);
      const {baseline} = page.comparison;
      if (result.speedup !== null && plan.planner !== baseline) facts.push(`${decimals(result.speedup, 2)} times as fast as ${baseline}`);
    }
    facts.push(`${count(plan.tokens)} tokens`, plan.setting);
    const given = page.comparison.batch.steps.find((step) => step.step === plan.step);
    const moved = given && (given.tokens !== plan.tokens || given.samples !== plan.samples.length)
      ? `This step has ${count(plan.tokens)} tokens of ${count(given.tokens)} that were given: ${plan.planner} moves documents between steps. Compare sums over all steps.`
      : "";
    const box = element("div", {className: "plan"},
      element("div", {className: "row"}, element("h3", {}, toggle), this.rankPicker(plan, lanes),
              element("span", {className: "quiet", textContent: facts.join(", ")})),
      ...(moved ? [element("p", {className: "warning", textContent: moved})] : []), holder);
    toggle.addEventListener("click", () => {
      const closed = box.toggleAttribute("data-closed");
      toggle.setAttribute("aria-expanded", String(!closed));
      toggle.textContent = (closed ? "\u25B8 " : "\u25BE ") + plan.planner;
      this.draw();
    });
    this.listen(canvas, lanes);
    return box;
  }

  rankPicker(plan, lanes) {
    if (plan.dp === 1) return "";
    const title = element("summary");
    const list = element("div");
    const boxes = [];
    const show = () => {
      const chosen = boxes.filter((box) => box.checked).map((box) => Number(box.value)).sort((a, b) => a - b);
      title.textContent = `ranks ${listed(chosen, 6)} of ${plan.dp}`;
      lanes.show(chosen);
      this.draw();
    };
    const choose = (name, keep) => {
      const button = element("button", {textContent: name, type: "button"});
      button.addEventListener("click", () => {
        for (const box of boxes) box.checked = keep(Number(box.value));
        show();
      });
      return button;
    };
    const ends = lanes.ranks;
    list.append(element("div", {className: "row"}, choose("busiest and idlest", (dp) => ends.includes(dp)), choose("all", () => true)));
    for (const {dp, sum} of plan.byWork) {
      if (!plan.packed.has(dp)) continue;
      const box = element("input", {type: "checkbox", value: dp, checked: ends.includes(dp)});
      box.addEventListener("change", show);
      boxes.push(box);
      list.append(element("label", {}, box, ` rank ${dp}: busy ${percent(sum / plan.span / plan.pp)}`));
    }
    if (boxes.length < plan.dp) {
      list.append(element("p", {className: "quiet", textContent: `${boxes.length} of ${plan.dp} ranks are in this page, from the busiest to the idlest.`}));
    }
    title.textContent = `ranks ${listed(ends, 6)} of ${plan.dp}`;
    return element("details", {className: "pick"}, title, list);
  }

  connect() {
    for (const id of ["size", "memories", "paths", "colour"]) byId(id).addEventListener("change", () => this.resize());
    byId("in").addEventListener("click", () => this.zoom(0.5));
    byId("out").addEventListener("click", () => this.zoom(2));
    byId("whole").addEventListener("click", () => this.look(0, this.span));
    window.addEventListener("resize", () => this.resize());
    document.addEventListener("scroll", () => {
      if (this.lanes.some((lanes) => lanes.visible && lanes.uncovered)) this.draw();
    }, {passive: true});
    const move = (event) => {
      const box = this.overview.getBoundingClientRect();
      const width = this.view.end - this.view.begin;
      const middle = (event.clientX - box.left - this.left) / (box.width - this.left) * this.span;
      this.look(middle - width / 2, middle + width / 2);
    };
    this.overview.addEventListener("pointerdown", (event) => { this.overview.setPointerCapture(event.pointerId); move(event); });
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) move(event); });
  }

  listen(canvas, lanes) {
    canvas.addEventListener("wheel", (event) => this.wheel(event, lanes), {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, {x: event.offsetX, y: event.offsetY});
    });
    canvas.addEventListener("pointermove", (event) => this.move(event, lanes));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
    canvas.addEventListener("pointerleave", () => { lanes.cursor = null; hideTip(); this.draw(); });
    canvas.addEventListener("dblclick", (event) => {
      const found = lanes.hit(event.offsetX, event.offsetY);
      if (found && found.at !== undefined) this.lookAt(found.lane.row.start[found.at], found.lane.row.start[found.at + 1]);
    });
    canvas.addEventListener("keydown", (event) => this.key(event, lanes));
    canvas.addEventListener("blur", () => { hideTip(); });
  }

  // --- the view ---

  get perPixel() { return (this.view.end - this.view.begin) / Math.max(...this.lanes.map((lanes) => lanes.width)); }

  look(begin, end) {
    const width = Math.min(this.span, Math.max(200, end - begin));
    const from = Math.min(Math.max(0, begin + (end - begin - width) / 2), this.span - width);
    this.view = {begin: from, end: from + width};
    this.draw();
  }
  lookAt(begin, end) {
    const room = Math.max(1000, 1.5 * (end - begin));
    this.look(begin - room, end + room);
  }
  zoom(factor, at = (this.view.begin + this.view.end) / 2) {
    const {begin, end} = this.view;
    if (factor < 1 && end - begin <= 200) return;
    this.look(at - (at - begin) * factor, at + (end - at) * factor);
  }
  pan(pixels) {
    const by = pixels * this.perPixel;
    this.look(this.view.begin + by, this.view.end + by);
  }

  wheel(event, lanes) {
    const size = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan(sideways * size);
    } else if (event.ctrlKey || event.metaKey || document.activeElement === lanes.canvas) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY * size)) / 300), lanes.time(event.offsetX));
    }
  }

  move(event, lanes) {
    const held = this.pointers.get(event.pointerId);
    const now = {x: event.offsetX, y: event.offsetY};
    if (!held) {
      this.point(event, lanes);
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId);
    if (other) {  // two fingers: keep both on their instants
      const before = Math.abs(held.x - other[1].x), after = Math.abs(now.x - other[1].x);
      if (before > 5 && after > 5) this.zoom(before / after, lanes.time((now.x + other[1].x) / 2));
    } else {
      this.pan(held.x - now.x);
    }
    hideTip();
    this.pointers.set(event.pointerId, now);
  }

  point(event, lanes) {
    const found = lanes.hit(event.offsetX, event.offsetY);
    lanes.cursor = found && found.at !== undefined ? {row: found.lane.row, at: found.at} : null;
    if (!found) {
      hideTip();
    } else if (found.level !== undefined) {
      const {row} = found.lane;
      showTip([`${bytes(found.level)} held, ${place(row.dp, row.pp)}`, `at ${duration(found.time)}`,
               `limit ${bytes(lanes.plan.limit)}, always there ${bytes(lanes.plan.always(row))}`,
               `peak ${bytes(lanes.plan.peaks[lanes.plan.device(row)].bytes)}`], event.clientX, event.clientY);
    } else {
      showTip(describeEntry(lanes.plan, found.lane.row, found.at), event.clientX, event.clientY);
    }
    this.draw();
  }

  key(event, lanes) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (steps) this.go(lanes, ...steps);
    else if (event.key === "+" || event.key === "=" || event.key === "w") this.zoom(0.6, this.middle(lanes));
    else if (event.key === "-" || event.key === "s") this.zoom(1 / 0.6, this.middle(lanes));
    else if (event.key === "a") this.pan(-lanes.width / 5);
    else if (event.key === "d") this.pan(lanes.width / 5);
    else if (event.key === "0") this.look(0, this.span);
    else if (event.key === "Home") this.goTo(lanes, 0);
    else if (event.key === "End") this.goTo(lanes, Infinity);
    else if (event.key === "Enter" && lanes.cursor) {
      const {row, at} = lanes.cursor;
      this.lookAt(row.start[at], row.start[at + 1]);
    } else if (event.key === "Escape") {
      lanes.cursor = null;
      hideTip();
      lanes.canvas.blur();
      this.draw();
    } else return;
    event.preventDefault();
  }

  /** Where keys zoom: at the cursor if it is in view. */
  middle(lanes) {
    const {begin, end} = this.view;
    const at = lanes.cursor ? lanes.cursor.row.start[lanes.cursor.at] : -1;
    return at >= begin && at < end ? at : (begin + end) / 2;
  }
  go(lanes, across, down) {
    if (lanes.rows.length === 0) return;
    if (!lanes.cursor) {
      const {row} = lanes.rows[0];
      this.choose(lanes, row, lastAtMost(row.start, this.view.begin, row.count));
      return;
    }
    const {row, at} = lanes.cursor;
    if (across) {
      this.choose(lanes, row, Math.min(row.count - 1, Math.max(0, at + across)));
      return;
    }
    const place = lanes.rows.findIndex((lane) => lane.row === row) + down;
    if (place < 0 || place >= lanes.rows.length) return;
    const other = lanes.rows[place].row;
    this.choose(lanes, other, lastAtMost(other.start, (row.start[at] + row.start[at + 1]) / 2, other.count));
  }
  goTo(lanes, at) {
    const row = lanes.cursor ? lanes.cursor.row : lanes.rows[0] && lanes.rows[0].row;
    if (row) this.choose(lanes, row, Math.min(row.count - 1, at));
  }
  /** Puts the cursor on an entry and brings it into view. */
  choose(lanes, row, at) {
    lanes.cursor = {row, at};
    const {begin, end} = this.view;
    const from = row.start[at], to = row.start[at + 1];
    if (to <= begin || from >= end) {
      const width = end - begin;
      this.look((from + to - width) / 2, (from + to + width) / 2);
    }
    const lines = describeEntry(lanes.plan, row, at);
    const box = lanes.canvas.getBoundingClientRect();
    const lane = lanes.rows.find((one) => one.row === row);
    const x = Math.min(box.right, Math.max(box.left + this.left, box.left + lanes.x((from + to) / 2)));
    showTip(lines, x, box.top - lanes.offset + lane.top);
    byId("live").textContent = lines.join(". ");
    this.draw();
  }

  /** Shows a step of a plan's critical path. */
  reveal(plan, step) {
    const lanes = this.lanes.find((one) => one.plan === plan);
    const onDevice = step.kind !== TRANSFER && step.kind !== REDUCE;
    if (onDevice && plan.packed.has(step.dp) && !lanes.ranks.includes(step.dp)) {
      lanes.show([...lanes.ranks, step.dp].sort((a, b) => a - b));
    }
    this.lookAt(step.begin, step.end);
    const lane = lanes.byDevice.get(lanes.plan.device(step));
    window.scrollBy(0, lanes.box.getBoundingClientRect().top + (lane ? lane.y : 0) - window.innerHeight / 2);
    if (onDevice && lane) lanes.cursor = {row: lane.row, at: lastAtMost(lane.row.start, step.begin, lane.row.count)};
    this.draw();
  }

  // --- drawing ---

  resize() {
    this.readControls();
    for (const lanes of this.lanes) lanes.layOut();
    this.draw();
  }
  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.drawNow();
    });
  }
  drawNow() {
    const begun = performance.now();
    this.drawAxis();
    this.drawOverview();
    for (const lanes of this.lanes) {
      if (lanes.visible && lanes.box.clientWidth > 0) lanes.draw();
    }
    this.frame = {count: this.frame.count + 1, took: performance.now() - begun};
  }

  drawAxis() {
    const context = prepare(this.axis, 20);
    const width = this.axis.clientWidth - this.left;
    const {begin, end} = this.view;
    let step = Math.pow(10, Math.ceil(Math.log10((end - begin) / Math.max(2, width / 60))));
    for (const part of [5, 2]) if ((end - begin) / (step / part) * 90 < width) { step /= part; break; }
    const unit = step >= 1e9 ? [1e9, "s"] : step >= 1e6 && end < 1e11 ? [1e6, "ms"] : step >= 1e6 ? [1e9, "s"] : step >= 1e3 ? [1e6, "ms"] : [1e3, "\u00b5s"];
    const digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
    context.strokeStyle = colours.line;
    context.fillStyle = colours.quiet;
    for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
      const x = this.left + (at - begin) / (end - begin) * width;
      context.beginPath();
      context.moveTo(x + 0.5, 15);
      context.lineTo(x + 0.5, 20);
      context.stroke();
      const text = `${decimals(at / unit[0], digits)} ${unit[1]}`;
      const half = context.measureText(text).width / 2;
      if (x - half > this.left - 30 && x + half < this.left + width) context.fillText(text, x - half, 8);
    }
  }

  /** A thin bar a plan, as long as its step, and the part in view. */
  drawOverview() {
    const thick = this.plans.length > 8 ? 2 : 4;
    const height = this.plans.length * (thick + 1) + 4;
    const context = prepare(this.overview, height);
    const width = this.overview.clientWidth - this.left;
    context.fillStyle = colours.panel;
    context.fillRect(this.left, 0, width, height);
    this.plans.forEach((plan, at) => {
      context.fillStyle = colours.held;
      context.fillRect(this.left, 2 + at * (thick + 1), plan.span / this.span * width, thick);
    });
    const {begin, end} = this.view;
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    const from = this.left + begin / this.span * width;
    context.strokeRect(from + 1, 1, Math.max(3, (end - begin) / this.span * width - 2), height - 2);
  }
}
