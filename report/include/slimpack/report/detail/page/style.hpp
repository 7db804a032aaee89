// SPDX-License-Identifier: Apache-2.0
// How the HTML report looks, on light and dark pages, wide and narrow.
#pragma once

#include <string_view>

namespace slimpack::report::detail::page {

inline constexpr std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #ffffff; --panel: #f6f8fa; --text: #1f2328; --quiet: #57606a; --line: #d0d7de; --accent: #0a5cc2;
  --forward: #2f7ed8; --backward: #2a9d6a; --head: #e07b00; --optimizer: #7b5cc4; --reduce: #b0569f;
  --on-unit: #ffffff; --merged: #111820; --path: #d1242f; --chosen: #111820;
  --gap-fill: #e4e7eb; --gap-drain: #cdd3da; --gap-imbalance: #d9c8f0; --gap-reduce: #efc3e6; --gap-peer: #f4d58a;
  --gap-meeting: #a9dbe3; --gap-window: #e3c7b5; --gap-memory: #ee9a9a; --gap-order: #d5e2a8;
  --held: #c3d0dd; --always: #8fa1b3; --limit: #c62f2f;
  --kind-0: #4f8fd9; --kind-1: #38a37a; --kind-2: #8bc6a4; --kind-3: #d9a441; --kind-4: #e2c27a; --kind-5: #c0764a;
  --kind-6: #d69a78; --kind-7: #b9a3d8; --kind-8: #6e7f91; --kind-9: #8fa1b3; --kind-10: #b4c0cc;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0d1117; --panel: #161b22; --text: #e6edf3; --quiet: #9ba5b0; --line: #30363d; --accent: #79b8ff;
    --forward: #4a94e8; --backward: #35a873; --head: #f0922b; --optimizer: #9a80e0; --reduce: #cf77be;
    --on-unit: #0d1117; --merged: #ffffff; --path: #ff7b72; --chosen: #ffffff;
    --gap-fill: #21262d; --gap-drain: #373e47; --gap-imbalance: #4b3a6e; --gap-reduce: #6a2f60; --gap-peer: #6b5417;
    --gap-meeting: #1f5560; --gap-window: #5c4334; --gap-memory: #7a2e2e; --gap-order: #4b5526;
    --held: #38444f; --always: #5b6b7b; --limit: #ff7b72;
    --kind-8: #7d8fa1; --kind-9: #5f6f80; --kind-10: #465462;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
header, main, footer { max-width: 1680px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 18px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 30px 0 6px; }
h3 { font-size: 14px; margin: 0; }
p { margin: 4px 0; max-width: 130ch; }
.quiet, footer { color: var(--quiet); font-size: 13px; }
footer { padding-top: 24px; padding-bottom: 40px; }
nav { margin: 6px 0; } nav a { margin-right: 14px; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
button, select { font: inherit; font-size: 13px; color: var(--text); background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; padding: 2px 9px; min-height: 28px; }
button { cursor: pointer; }
button:hover { border-color: var(--quiet); }
label { font-size: 13px; white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; max-width: 100%; }
.scroll.tall { max-height: 420px; overflow-y: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--panel); font-weight: 600; white-space: normal; vertical-align: bottom; position: sticky; top: 0; z-index: 1; }
tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); font-weight: 600; z-index: 1; }
th:first-child { background: var(--panel); z-index: 2; }
td.text, th.text { text-align: left; }
td.settings { white-space: normal; min-width: min(430px, 80vw); color: var(--quiet); font-size: 12px; line-height: 1.35; }
tbody tr:hover td { background: var(--panel); }
th button { border: 0; background: none; padding: 0; min-height: 0; font-weight: 600; }
th[aria-sort=ascending] button::after { content: " \25B2"; }
th[aria-sort=descending] button::after { content: " \25BC"; }
.bar { display: inline-block; height: 9px; min-width: 1px; background: var(--forward); border-radius: 2px; }
.barbox { display: inline-block; width: 110px; text-align: left; margin-right: 8px; line-height: 1; }
tr.best .bar { background: var(--backward); }
tr.none td { color: var(--quiet); font-weight: 400; }
#tools { position: sticky; top: 0; z-index: 5; background: var(--page); padding: 6px 0 0; }
.row { display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; }
.keys { display: flex; flex-wrap: wrap; gap: 3px 12px; font-size: 12px; color: var(--quiet); margin: 4px 0; }
.keys i { display: inline-block; width: 12px; height: 10px; border-radius: 2px; margin-right: 5px; vertical-align: -1px; }
canvas { display: block; width: 100%; touch-action: pan-y; border-radius: 4px; }
.holder { position: relative; }
canvas.lanes { position: absolute; left: 0; cursor: crosshair; }
#overview { touch-action: none; cursor: grab; }
.plan { margin: 12px 0 0; border-top: 1px solid var(--line); padding-top: 8px; }
.plan > .row { margin-bottom: 4px; }
.plan h3 button { border: 0; background: none; padding: 0 4px 0 0; font-weight: 600; font-size: 14px; }
.plan[data-closed] .holder, .plan[data-closed] details { display: none; }
details.pick { position: relative; font-size: 13px; }
details.pick > div { position: absolute; z-index: 6; background: var(--page); border: 1px solid var(--line); border-radius: 8px;
  padding: 8px 12px; max-height: 300px; overflow: auto; box-shadow: 0 6px 24px #0003; min-width: 230px; }
details.pick label { display: block; }
summary { cursor: pointer; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 12px; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px; min-width: 0; }
.card .note { min-height: 19px; font-size: 12.5px; color: var(--quiet); overflow-wrap: anywhere; }
.share { display: flex; height: 20px; border-radius: 4px; overflow: hidden; background: var(--panel); margin: 2px 0 6px; }
.share span { display: block; min-width: 0; }
#tip { position: fixed; z-index: 20; pointer-events: none; background: var(--page); color: var(--text); border: 1px solid var(--quiet);
  border-radius: 8px; padding: 7px 10px; font-size: 12.5px; line-height: 1.4; max-width: min(420px, 92vw); box-shadow: 0 6px 24px #0004;
  font-variant-numeric: tabular-nums; }
#tip b { display: block; }
#tip[hidden] { display: none; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
#failed { background: var(--limit); color: #fff; padding: 8px 20px; }
td a.step { cursor: pointer; }
@media (max-width: 640px) {
  header, main, footer { padding-left: 10px; padding-right: 10px; }
  h1 { font-size: 19px; }
  th, td { padding: 4px 7px; }
  .barbox { width: 48px; }
  #tools { position: static; }
}
@media print { #tools .row, nav { display: none; } }
)css";

}  // namespace slimpack::report::detail::page
