"use strict";
// Pointing at a chart shows the nearest value; a click on a table's head sorts it.
const tip = document.getElementById("tip");
const near = 40;
let lit = [];

function clear() {
  for (const element of lit) element.classList.remove("lit");
  lit = [];
  tip.hidden = true;
}

function show(point, x, y) {
  clear();
  lit = [point];
  const line = point.previousElementSibling && lineOf(point);
  if (line) lit.push(line);
  for (const element of lit) element.classList.add("lit");
  tip.textContent = point.dataset.label;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
  tip.style.top = Math.max(4, y - box.height - 12) + "px";
}

function lineOf(point) {
  let before = point.previousElementSibling;
  while (before && !before.classList.contains("line")) before = before.previousElementSibling;
  return before;
}

for (const chart of document.querySelectorAll("svg.chart, svg.anatomy")) {
  const points = [...chart.querySelectorAll(".point")];
  for (const point of points) {
    // The script says more, and at once; without it the browser shows the title.
    const title = point.querySelector("title");
    if (title) title.remove();
  }
  chart.addEventListener("pointermove", (event) => {
    let best = null;
    let least = near * near;
    for (const point of points) {
      const box = point.getBoundingClientRect();
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const distance = dx * dx + dy * dy;
      if (distance < least) { least = distance; best = point; }
    }
    if (best) show(best, event.clientX, event.clientY); else clear();
  });
  chart.addEventListener("pointerleave", clear);
}

function value(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = Number(text.replace("\u2212", "-"));
  return text !== "" && !Number.isNaN(number) ? number : text;
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.title = "sort";
    head.addEventListener("click", () => {
      const up = head.dataset.up !== "yes";
      head.dataset.up = up ? "yes" : "no";
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [p, q] = [value(a, column), value(b, column)];
        const order = typeof p === "number" && typeof q === "number" ? p - q : String(p).localeCompare(String(q));
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
