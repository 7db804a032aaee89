// SPDX-License-Identifier: Apache-2.0
// Tables that sort, and everything put in its place.
"use strict";

const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("data").textContent);

function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(element("b", {textContent: lines[0]}), ...lines.slice(1).map((line) => element("div", {textContent: line})));
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, window.innerWidth - width - 8)) + "px";
  tip.style.top = (y + 18 + height < window.innerHeight ? y + 18 : Math.max(4, y - height - 12)) + "px";
}
function hideTip() { byId("tip").hidden = true; }

/** Sorts a table by the column of a heading; rows without a value stay below. */
function sortBy(heading) {
  const table = heading.closest("table");
  const column = [...heading.parentNode.children].indexOf(heading);
  const falling = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const value = (row) => {
    const cell = row.children[column];
    const text = cell ? cell.dataset.value ?? cell.textContent : "";
    const number = Number(text);
    return text === "" || text === "null" ? null : Number.isNaN(number) ? text : number;
  };
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const left = value(a), right = value(b);
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right));
    return falling ? -order : order;
  });
  table.tBodies[0].append(...rows);
}
function makeSortable(table) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = element("button", {type: "button"}, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(heading));
  }
}

/** Every entry of the comparison with all its figures, under the keys of the JSON. */
function allFigures(results) {
  const columns = [];
  for (const key of Object.keys(results[0])) {
    const sample = results.find((row) => row[key] !== null && typeof row[key] === "object");
    if (sample && key !== "settings") for (const part of Object.keys(sample[key])) columns.push([key, part]);
    else columns.push([key]);
  }
  const head = element("tr", {}, ...columns.map((keys) => element("th", {textContent: keys.join(": ")})));
  const body = element("tbody", {}, ...results.map((row) => element("tr", {}, ...columns.map(([key, part]) => {
    const value = part === undefined || row[key] === null ? row[key] : row[key][part];
    const words = key === "settings" ? Object.entries(value).map(([name, text]) => `${name} ${text}`).join(", ") : null;
    const shown = words ?? (value === null ? "" : typeof value === "number" ? value.toLocaleString("en-US", {maximumFractionDigits: 6}) : String(value));
    return element("td", {textContent: shown, className: key === "settings" ? "text settings" : typeof value === "number" ? "" : "text",
                          data: {key: part === undefined ? key : `${key}.${part}`, value: words ?? JSON.stringify(value)}});
  }))));
  return element("table", {id: "figures"}, element("thead", {}, head), body);
}

function start() {
  colours.read();
  const {results} = page.comparison;
  const figures = allFigures(results);
  byId("all-figures").append(figures);
  document.querySelectorAll("table.sortable, #figures").forEach(makeSortable);
  byId("save").addEventListener("click", () => {
    const text = JSON.stringify(page.comparison, null, 1);
    const link = element("a", {href: URL.createObjectURL(new Blob([text], {type: "application/json"})), download: "comparison.json"});
    link.click();
    URL.revokeObjectURL(link.href);
  });
  const plans = page.plans.map((data) => new Plan(data));
  if (plans.length === 0) {
    document.querySelectorAll("[data-plans]").forEach((part) => { part.hidden = true; });
    return;
  }
  const timelines = new Timelines(plans, byId("lanes"));
  const memory = timelines.memoryScale;
  const span = timelines.span;
  const charts = [];
  const draw = [["memory-cards", (plan) => memoryBars(plan, memory)], ["time-cards", timeBars], ["rank-cards", (plan) => workBars(plan, span)]];
  for (const [id, make] of draw) {
    for (const plan of plans) {
      const chart = make(plan);
      charts.push(chart);
      byId(id).append(chart.box);
    }
  }
  showPaths(plans, byId("path-box"), (plan, step) => timelines.reveal(plan, step));
  page.memoryKinds.forEach((kind, at) => {
    const key = element("i");
    key.style.background = `var(--kind-${at})`;
    byId("memory-keys").append(element("span", {}, key, kind));
  });
  const drawCharts = () => charts.forEach((chart) => chart.draw());
  drawCharts();
  window.addEventListener("resize", drawCharts);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.read();
    drawCharts();
    timelines.draw();
  });
  page.timelines = timelines;
  document.documentElement.dataset.ready = "yes";
}
start();
