// One curve: a band from the least to the largest that a point stands for, and a line through its
// means. Pointing tells a point; the arrow keys do.
"use strict";
const $ = id => document.getElementById(id);

function short(x) {
  if (x === null || x === undefined) return "\u2013";
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-3 || size >= 1e6)
    ? x.toExponential(2)
    : String(+x.toPrecision(4));
}

// Round numbers between two others, about so many.
function ticks(low, high, about) {
  const rough = (high - low) / about,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(t => t >= rough) ?? 10 * power,
    all = [];
  for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) all.push(k * step);
  return all;
}

// Powers of ten, and between few of them 2 and 5 as well.
function powers(low, high) {
  const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const all = [],
    stride = Math.ceil((to - from) / 6);
  for (let k = from; k <= to; k += stride) {
    for (const m of to - from <= 2 ? [1, 2, 5] : [1]) all.push(m * 10 ** k);
  }
  return all.filter(x => x >= low && x <= high);
}

class Chart {
  constructor(name) {
    this.figure = document.createElement("figure");
    const caption = this.figure.appendChild(document.createElement("figcaption"));
    const add = (parent, tag) => parent.appendChild(document.createElement(tag));
    add(caption, "h2").textContent = name;
    this.told = add(caption, "output");
    this.lost = add(caption, "span");
    this.lost.className = "lost";
    this.button = add(caption, "button");
    this.button.textContent = "log";
    this.button.title = "A logarithmic scale";
    this.button.onclick = () => {
      this.wantsLog = !this.log();
      this.draw();
    };
    this.canvas = add(this.figure, "canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.wantsLog = name === "loss" ? null : false;
    this.at = null;
    this.canvas.addEventListener("pointermove", event => this.point(event.offsetX));
    this.canvas.addEventListener("pointerdown", event => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
    this.canvas.addEventListener("blur", () => {
      this.at = null;
      this.draw();
    });
    this.canvas.addEventListener("keydown", event => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key],
        last = this.curve.steps.length - 1;
      if (!by || last < 0) return;
      event.preventDefault();
      this.at = Math.min(Math.max((this.at ?? last + (by < 0)) + by, 0), last);
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  set(curve, smooth) {
    this.curve = curve;
    this.smooth = smooth;
    if (this.at !== null && this.at >= curve.steps.length) this.at = null;
    const times = curve.lost === 1 ? "once" : `${curve.lost} times`;
    this.lost.textContent = curve.lost
      ? `not finite ${times}, first at step ${curve.firstLost}`
      : "";
    this.draw();
  }

  // By itself where the values span more than a power of ten.
  log() {
    const { least, most } = this.curve;
    const low = Math.min(...least),
      is = low > 0 && Number.isFinite(low);
    return is && (this.wantsLog ?? Math.max(...most) / low > 30);
  }

  // The means, smoothed: each is so much of those before it, as a running mean that knows its
  // start.
  line() {
    let sum = 0,
      weight = 0;
    return this.curve.mean.map(x => {
      sum = this.smooth * sum + (1 - this.smooth) * x;
      weight = this.smooth * weight + 1 - this.smooth;
      return sum / weight;
    });
  }

  point(x) {
    const { steps } = this.curve;
    if (!steps.length) return;
    const step = this.stepOf(x);
    let best = 0;
    steps.forEach((one, k) => {
      if (Math.abs(one - step) < Math.abs(steps[best] - step)) best = k;
    });
    this.at = best;
    this.draw();
  }

  tell() {
    const { steps, mean, least, most, last, name } = this.curve,
      k = this.at;
    const range =
      k !== null && least[k] !== most[k] ? ` (${short(least[k])} to ${short(most[k])})` : "";
    this.told.textContent =
      k === null ? short(last) : `step ${steps[k]}: ${short(mean[k])}${range}`;
    this.canvas.setAttribute("aria-label", `${name}: ${this.told.textContent}`);
  }

  draw() {
    const box = this.canvas.getBoundingClientRect();
    if (!this.curve || !box.width) return;
    const ratio = window.devicePixelRatio || 1,
      pen = this.canvas.getContext("2d");
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.tell();
    const { steps, least, most } = this.curve,
      log = this.log();
    this.button.setAttribute("aria-pressed", log);
    this.button.disabled = !(Math.min(...least) > 0);
    if (!steps.length) return;
    const style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue("--" + name);
    const line = this.line();
    // One point that stands out hides no others: the scale is of all but the outermost.
    const sorted = [...least, ...most].sort((a, b) => a - b),
      part = share => sorted[Math.floor(share * (sorted.length - 1))];
    let [low, high] =
      steps.length > 50 && !log
        ? [Math.min(part(0.005), ...line), Math.max(part(0.995), ...line)]
        : [sorted[0], sorted[sorted.length - 1]];
    if (low === high)
      [low, high] = log
        ? [low / 2, high * 2]
        : [low - Math.abs(low || 1) / 2, high + Math.abs(high || 1) / 2];
    const to = log ? Math.log10 : x => x,
      [bottom, top] = [to(low), to(high)];
    const marks = log ? powers(low, high) : ticks(low, high, 4);
    pen.font = "11px system-ui, sans-serif";
    const left = Math.max(28, ...marks.map(x => pen.measureText(short(x)).width)) + 8,
      right = box.width - 8;
    const [ceiling, floor] = [8, box.height - 22],
      first = steps[0],
      last = Math.max(steps[steps.length - 1], first + 1);
    const x = step => left + ((step - first) / (last - first)) * (right - left);
    const y = value => floor - ((to(value) - bottom) / (top - bottom)) * (floor - ceiling);
    this.stepOf = at => first + ((at - left) / (right - left)) * (last - first);

    pen.fillStyle = color("soft");
    for (const mark of marks) {
      pen.fillText(short(mark), left - 6 - pen.measureText(short(mark)).width, y(mark) + 4);
      pen.fillRect(left, Math.round(y(mark)), right - left, 0.3);
    }
    for (const mark of ticks(first, last, Math.max(2, box.width / 110)).filter(Number.isInteger)) {
      const text = mark.toLocaleString("en"),
        wide = pen.measureText(text).width;
      pen.fillText(
        text,
        Math.min(Math.max(x(mark) - wide / 2, left), right - wide),
        box.height - 6,
      );
    }
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, right - left + 3, floor + 2);
    pen.clip();
    pen.fillStyle = color("band");
    pen.beginPath();
    steps.forEach((step, k) => pen.lineTo(x(step), y(most[k])));
    for (let k = steps.length - 1; k >= 0; k--) pen.lineTo(x(steps[k]), y(least[k]));
    pen.fill();
    pen.strokeStyle = pen.fillStyle = color("mark");
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    pen.beginPath();
    line.forEach((value, k) => pen.lineTo(x(steps[k]), y(value)));
    pen.stroke();
    if (steps.length === 1) pen.fillRect(x(first) - 2, y(line[0]) - 2, 4, 4);
    if (this.at !== null) {
      pen.fillStyle = color("soft");
      pen.fillRect(Math.round(x(steps[this.at])), ceiling, 1, floor - ceiling);
      pen.fillStyle = color("mark");
      pen.beginPath();
      pen.arc(x(steps[this.at]), y(line[this.at]), 3.5, 0, 7);
      pen.fill();
    }
    pen.restore();
  }
}
