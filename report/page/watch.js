// SPDX-License-Identifier: Apache-2.0
// Shows a fault of any other script on the page.
"use strict";
window.addEventListener("error", (event) => {
  const root = document.documentElement;
  root.dataset.errors = (root.dataset.errors ? root.dataset.errors + "\n" : "") + event.message;
  const note = document.getElementById("failed");
  if (note) { note.hidden = false; note.textContent = "This page's script failed: " + event.message; }
});
