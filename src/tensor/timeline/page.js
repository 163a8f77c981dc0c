// Lays the picture out anew: the wheel zooms around the pointer, dragging moves, a double click resets.
"use strict";
const svg = document.querySelector("svg"), LEFT = +svg.dataset.left;
const from = +svg.dataset.from, to = +svg.dataset.to, full = to - from;
let start = from, length = full;
const rule = svg.querySelector("#axis line"), axis = svg.querySelector("#axis");
const [ruleTop, ruleEnd] = rule ? [rule.getAttribute("y1"), rule.getAttribute("y2")] : [0, 0];
// Lanes' names stay readable above what moves below them.
const names = [...svg.querySelectorAll("text.lane")];
const cover = document.createElementNS(svg.namespaceURI, "rect");
cover.setAttribute("width", LEFT - 2); cover.setAttribute("height", "100%"); cover.setAttribute("fill", "#fff");
svg.append(cover, ...names, ...svg.querySelectorAll("text.legend, svg > text:not([class])"));
const span = us => us >= 1e6 ? (us / 1e6).toFixed(2) + " s" : us >= 1e3 ? (us / 1e3).toFixed(2) + " ms" : us.toFixed(1) + " us";
function layout() {
  const width = window.innerWidth - 30, scale = (width - LEFT - 12) / length, x = us => LEFT + (us - start) * scale;
  svg.setAttribute("width", width);
  for (const e of svg.querySelectorAll("[data-a]")) {
    const a = x(+e.dataset.a), b = x(+e.dataset.b), shown = b >= LEFT && a <= width;
    e.style.display = shown ? "" : "none";
    if (!shown) continue;
    const wide = Math.max(b - a, 0.8);
    if (e.tagName === "path") {
      const [y1, y2] = e.dataset.y.split(" ");
      if (e.classList.contains("barrier")) e.setAttribute("d", `M${a} ${y1}L${b} ${y2}`);
      else e.setAttribute("d", `M${a} ${y1}C${a + 14} ${y1} ${b - 14} ${y2} ${b} ${y2}`);
    } else {
      const rect = e.tagName === "rect" ? e : e.querySelector("rect"), text = e.querySelector("text");
      rect.setAttribute("x", a); rect.setAttribute("width", wide);
      if (text) {
        const left = Math.max(a, LEFT), room = Math.floor((Math.min(b, width) - left - 6) / 6.7), label = e.dataset.l;
        text.setAttribute("x", left + 3);
        text.textContent = label.length <= room ? label : room < 4 ? "" : label.slice(0, room - 1) + "…";
      }
    }
  }
  const rough = length / 10, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(t => t >= rough) ?? 10 * power;
  axis.replaceChildren();
  for (let t = Math.ceil((start - from) / step) * step; t <= start - from + length; t += step) {
    const at = x(from + t), line = document.createElementNS(svg.namespaceURI, "line");
    line.setAttribute("class", "rule"); line.setAttribute("x1", at); line.setAttribute("x2", at);
    line.setAttribute("y1", ruleTop); line.setAttribute("y2", ruleEnd);
    const text = document.createElementNS(svg.namespaceURI, "text");
    text.setAttribute("class", "axis"); text.setAttribute("x", at + 2); text.setAttribute("y", ruleTop - 2);
    text.textContent = at + 2 + span(t).length * 6.2 < width ? span(t) : "";
    axis.append(line, text);
  }
}
const clamp = () => { length = Math.min(length, full); start = Math.min(Math.max(start, from), to - length); };
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const width = svg.getAttribute("width") - LEFT - 12, share = Math.min(Math.max((event.offsetX - LEFT) / width, 0), 1);
  const at = start + share * length;
  length = Math.max(length * 1.0015 ** event.deltaY, full * 1e-6);
  start = at - share * length;
  clamp(); layout();
}, { passive: false });
let held = null;
svg.addEventListener("pointerdown", event => { held = [event.clientX, start]; });
window.addEventListener("pointerup", () => { held = null; });
window.addEventListener("pointermove", event => {
  if (!held) return;
  start = held[1] - (event.clientX - held[0]) * length / (svg.getAttribute("width") - LEFT - 12);
  clamp(); layout();
});
svg.addEventListener("dblclick", () => { start = from; length = full; layout(); });
window.addEventListener("resize", layout);
layout();
