"use strict";
// Pointing at a chart shows the nearest value; a drag turns a surface; a selector chooses images; a click on a table's head sorts it.
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
    let best = event.target.closest(".point");
    let least = near * near;
    for (const point of best ? [] : points) {
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

// A height field, drawn from far to near; turn and tilt are in radians.
function surface(canvas) {
  const { x, y, z, ends, levels, labels, colours } = JSON.parse(canvas.dataset.surface);
  const pen = canvas.getContext("2d");
  const [middle, size] = [canvas.height * 0.51, canvas.height * 0.31];
  let [turn, tilt, asked] = [0.6, 0.5, false];

  function project(u, v, height) {
    const away = u * Math.sin(turn) + v * Math.cos(turn);
    const across = u * Math.cos(turn) - v * Math.sin(turn);
    const up = away * Math.sin(tilt) + (1.2 * height - 0.6) * Math.cos(tilt);
    return [canvas.width / 2 + size * across, middle - size * up, away];
  }

  function stroke(places, colour) {
    pen.beginPath();
    for (const [across, down] of places) pen.lineTo(across, down);
    pen.strokeStyle = colour;
    pen.stroke();
  }

  function faces() {
    const found = [];
    for (let i = 0; i + 1 < y.length; i++) {
      for (let j = 0; j + 1 < x.length; j++) {
        const heights = [z[i][j], z[i][j + 1], z[i + 1][j + 1], z[i + 1][j]];
        if (heights.includes(null)) continue;
        const [a, b, c, d] = heights;
        const corners = [
          project(x[j], y[i], a), project(x[j + 1], y[i], b),
          project(x[j + 1], y[i + 1], c), project(x[j], y[i + 1], d),
        ];
        // Slopes that face left and the reader are lighter, so that its shape is seen.
        const slope = ((b + c - a - d) / (x[j + 1] - x[j]) + (c + d - a - b) / (y[i + 1] - y[i])) / 2;
        const light = 1 + 0.13 * Math.tanh(slope);
        const colour = colours[Math.round((a + b + c + d) / 4 * (colours.length - 1))];
        const away = corners.reduce((sum, corner) => sum + corner[2], 0);
        found.push({ corners, away, fill: `rgb(${colour.map((part) => Math.min(255, part * light)).join()})` });
      }
    }
    return found.sort((one, two) => two.away - one.away);
  }

  function axes() {
    const floor = [[-1, -1], [1, -1], [1, 1], [-1, 1]];
    stroke([...floor, floor[0]].map(([u, v]) => project(u, v, 0)), "#9aa3ae");
    pen.fillStyle = "#444";
    const near = (places) => places.reduce((one, two) => (project(...one, 0)[2] < project(...two, 0)[2] ? one : two));
    const v = near([[0, -1], [0, 1]])[1];
    const u = near([[-1, 0], [1, 0]])[0];
    pen.textAlign = "center";
    for (const [text, ...place] of [
      [ends[0][0], -0.9, 1.15 * v], [labels[0], 0, 1.3 * v], [ends[0][1], 0.9, 1.15 * v],
      [ends[1][0], 1.15 * u, -0.9], [labels[1], 1.3 * u, 0], [ends[1][1], 1.15 * u, 0.9],
    ]) pen.fillText(text, ...project(...place, 0).slice(0, 2));
    const left = floor.reduce((one, two) => (project(...one, 0)[0] < project(...two, 0)[0] ? one : two));
    stroke([project(...left, 0), project(...left, 1)], "#9aa3ae");
    pen.textAlign = "right";
    for (const [height, text] of levels) {
      const [across, down] = project(...left, height);
      stroke([[across - 8, down], [across, down]], "#9aa3ae");
      pen.fillText(text, across - 14, down);
    }
    pen.textAlign = "left";
    pen.fillText(labels[2], 8, 20);
  }

  function draw() {
    asked = false;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const letters = Math.max(22, 10 * canvas.width / (canvas.clientWidth || canvas.width));  // 10 px on small screens
    pen.font = `${letters}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.lineWidth = 1.5;
    pen.lineJoin = "round";
    axes();
    pen.lineWidth = 1;
    for (const { corners, fill } of faces()) {
      stroke([...corners, corners[0]], "rgba(255, 255, 255, 0.35)");
      pen.fillStyle = fill;
      pen.fill();
    }
  }

  function rotate(sideways, upwards) {
    turn += sideways;
    tilt = Math.max(0.1, Math.min(1.4, tilt + upwards));
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) rotate(-0.01 * event.movementX, 0.01 * event.movementY);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
    if (!step) return;
    event.preventDefault();
    rotate(...step);
  });
  canvas.hidden = false;
  canvas.nextElementSibling.hidden = false;
  draw();
}

document.querySelectorAll("canvas.surface").forEach(surface);

// Of images with choices, one choice is visible.
for (const select of document.querySelectorAll("select.choices")) {
  const choose = () => {
    for (const group of select.closest("figure").querySelectorAll("svg g.choice")) {
      group.style.display = Number(group.dataset.choice) === select.selectedIndex ? "" : "none";
    }
  };
  select.addEventListener("change", choose);
  choose();  // browsers keep a choice when a page is loaded again
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
