// The picture: the axis, lanes with what idles, bars, and on demand what needed what. What is out
// of sight costs nothing, and bars that fall onto one pixel are drawn once.
const HUES = {
  elementwise: 212,
  products: 28,
  windows: 10,
  reductions: 145,
  rows: 172,
  attention: 320,
  shaping: 255,
  index: 285,
  order: 95,
  creation: 50,
  reads: 195,
  regions: 345,
  custom: 300,
  others: 220,
};
const NAMES =
  "ink soft line back mark hatch idle await await-line dry dry-line arrow bar-ink".split(" ");
let look = {},
  colors = {};

// Colors are of the style sheet, which knows light and dark.
function learnColors() {
  const style = getComputedStyle(document.documentElement),
    of = name => style.getPropertyValue("--" + name).trim();
  for (const name of NAMES) look[name] = of(name);
  colors = {};
  const color = (family, chroma) => `hsl(${HUES[family] ?? 0},${chroma},${of("light")})`;
  for (const bar of bars)
    colors[bar.family] ??= bar.isStep
      ? color(bar.family, bar.family === "others" ? "8%" : of("chroma"))
      : look[bar.dry ? "dry" : "await"];
  const tile = document.createElement("canvas"),
    brush = tile.getContext("2d");
  tile.width = tile.height = 8;
  brush.strokeStyle = look.hatch;
  brush.lineWidth = 2;
  for (const shift of [-8, 0, 8]) {
    brush.beginPath();
    brush.moveTo(shift, 8);
    brush.lineTo(shift + 8, 0);
    brush.stroke();
  }
  look.idles = pen.createPattern(tile, "repeat");
}

// A round distance between marks of the axis, so that they have room.
function tick() {
  const rough = view.length / Math.max(2, (view.width - view.left) / 110),
    power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map(m => m * power).find(t => t >= rough) ?? 10 * power;
}

const MONO = "11px ui-monospace, Menlo, Consolas, monospace",
  CHAR = 6.7;
const fitting = (text, pixels) => {
  const room = Math.floor((pixels - 8) / CHAR);
  return text.length <= room ? text : room < 3 ? "" : text.slice(0, room - 1) + "\u2026";
};

function drawAxis(lines) {
  const step = tick();
  pen.font = MONO;
  for (let k = Math.ceil((view.from - FROM) / step); ; k++) {
    const x = xOf(FROM + k * step);
    if (x > view.width) break;
    pen.fillStyle = look.line;
    pen.fillRect(Math.round(x), lines ? AXIS : AXIS - 6, 1, lines ? view.height : 6);
    pen.fillStyle = look.soft;
    if (!lines) pen.fillText(k ? span(k * step).replace(/\.?0+ /, " ") : "0", x + 3, AXIS - 9);
  }
}

function drawLanes(y) {
  const device = lanes.filter(lane => lane.kind === "stream" || lane.kind === "small");
  for (const lane of lanes) {
    if (lane.kind === "stream") {
      pen.fillStyle = look.idles;
      for (const row of lane.rows)
        pen.fillRect(view.left, y(row.top) + 1, view.width, view.row - 3);
    }
    pen.fillStyle = look.line;
    pen.fillRect(0, y(lane.bottom) + 2, view.width, 1);
  }
  if (!device.length || view.hidden.has("idle")) return;
  const [from, to] = [y(device[0].top), y(device[device.length - 1].bottom)];
  pen.fillStyle = look.idle;
  for (const [a, b] of given.idle) {
    if (b < view.from || a > view.from + view.length) continue;
    pen.fillRect(xOf(a), from, Math.max(xOf(b) - xOf(a), 0.5), to - from);
  }
}

function drawBars(y, wanted, alpha) {
  pen.globalAlpha = alpha;
  pen.font = MONO;
  const to = view.from + view.length;
  for (const lane of lanes)
    for (const row of lane.rows) {
      const top = y(row.top) + 1,
        high = view.row - 3;
      if (top > view.height || top + high < AXIS) continue;
      for (
        let k = firstAfter(row, view.from), last = -1;
        k < row.bars.length && row.bars[k].a <= to;
        k++
      ) {
        const bar = row.bars[k],
          b = Math.max(xOf(bar.b), xOf(bar.a) + 1);
        if (b <= last + 0.5 || !isShown(bar) || !wanted(bar)) continue;
        const a = Math.max(xOf(bar.a), view.left - 2),
          wide = Math.min(b, view.width + 2) - a;
        last = b;
        pen.fillStyle = colors[bar.family];
        pen.fillRect(a, top, wide, high);
        if (wide > 4) {
          pen.strokeStyle = bar.isStep ? look.back : look[bar.dry ? "dry-line" : "await-line"];
          pen.strokeRect(a + 0.5, top + 0.5, wide - 1, high - 1);
        }
        if (wide > 30) {
          pen.fillStyle = look["bar-ink"];
          pen.fillText(fitting(bar.label, wide), a + 5, top + high / 2 + 4);
        }
      }
    }
  pen.globalAlpha = 1;
}

// From what was needed to who needed it; both may be out of sight.
function drawArrow(y, from, to) {
  const [x1, y1, x2, y2] = [
    xOf(from.b),
    y(from.row.top) + view.row / 2,
    xOf(to.a),
    y(to.row.top) + view.row / 2,
  ];
  if (Math.max(x1, x2) < view.left || Math.min(x1, x2) > view.width) return;
  const bend = Math.min(60, Math.max(14, Math.abs(x2 - x1) / 2));
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x2, y2);
  pen.lineTo(x2 - 6, y2 - 3.5);
  pen.lineTo(x2 - 6, y2 + 3.5);
  pen.fill();
}

// From what ended a wait to who waited.
function drawBarrier(y, one) {
  const x1 = one.step ? xOf(Math.min(one.step.b, one.b)) : xOf(one.b),
    x2 = xOf(one.b);
  if (Math.max(x1, x2) < view.left || Math.min(x1, x2) > view.width) return;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(x1, one.step ? y(one.step.row.top) + view.row - 2 : AXIS);
  pen.lineTo(x2, y(one.row.top) + 1);
  pen.stroke();
  pen.setLineDash([]);
}

const strokes = (color, width, alpha) => {
  pen.strokeStyle = pen.fillStyle = color;
  pen.lineWidth = width;
  pen.globalAlpha = alpha;
};

// Arrows between streams, behind the bars: where there are few enough that they say something.
const ARROWS_MAX = 400;
function drawAllArrows(y) {
  const [from, to] = [view.from, view.from + view.length],
    pairs = [];
  for (const step of steps) {
    if (step.b < from || step.a > to || !isShown(step)) continue;
    for (const need of step.needs) {
      const one = steps[need];
      if (
        one.lane !== step.lane &&
        lanes[one.lane].kind === "stream" &&
        lanes[step.lane].kind === "stream"
      )
        pairs.push([one, step]);
    }
    if (pairs.length > ARROWS_MAX) return;
  }
  strokes(look.arrow, 1, 0.8);
  for (const [one, step] of pairs) drawArrow(y, one, step);
  for (const one of awaits) {
    if (one.b < from || one.a > to || !isShown(one)) continue;
    strokes(look[one.dry ? "dry-line" : "await-line"], 1, 0.8);
    drawBarrier(y, one);
  }
  strokes(look.arrow, 1, 1);
}

function drawSelected(y, bar) {
  strokes(look.mark, 1.6, 1);
  if (bar.isStep) {
    for (const need of bar.needs.slice(0, 200)) drawArrow(y, steps[need], bar);
    for (const need of bar.neededBy.slice(0, 200)) drawArrow(y, bar, steps[need]);
    for (const one of bar.waiters.slice(0, 200)) drawBarrier(y, one);
  } else drawBarrier(y, bar);
  outline(y, bar, look.mark, 2.5);
  pen.lineWidth = 1;
}

function outline(y, bar, color, width) {
  strokes(color, width, 1);
  const a = Math.max(xOf(bar.a), view.left - 3),
    b = Math.min(Math.max(xOf(bar.b), xOf(bar.a) + 2), view.width + 3);
  if (b >= view.left && a <= view.width) pen.strokeRect(a, y(bar.row.top) + 1, b - a, view.row - 3);
  pen.lineWidth = 1;
}

function drawNames(y) {
  if (!view.named) {
    pen.fillStyle = look.back;
    pen.fillRect(0, 0, view.left - 4, view.height);
  }
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = look.soft;
  for (const lane of lanes) {
    if (view.named) {
      pen.fillStyle = look.back;
      pen.fillRect(4, y(lane.top), pen.measureText(lane.title).width + 8, view.named - 1);
      pen.fillStyle = look.soft;
      pen.fillText(lane.title, 8, y(lane.top) + 13);
      continue;
    }
    let title = lane.title;
    while (title.length > 4 && pen.measureText(title).width > view.left - 22)
      title = title.slice(0, -2) + "\u2026";
    pen.fillText(title, 12, y(lane.top) + view.row / 2 + 4);
  }
}

function draw() {
  const y = down => AXIS + down - view.top;
  pen.fillStyle = look.back;
  pen.fillRect(0, 0, view.width, view.height);
  drawAxis(true);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, view.width, view.height);
  pen.clip();
  drawLanes(y);
  if (view.arrows) drawAllArrows(y);
  drawBars(y, bar => !view.found || !view.found.set.has(bar), view.found ? 0.18 : 1);
  if (view.found) drawBars(y, bar => view.found.set.has(bar), 1);
  if (view.hover && view.hover !== view.selected) outline(y, view.hover, look.ink, 1.5);
  if (view.selected) drawSelected(y, view.selected);
  drawNames(y);
  pen.restore();
  pen.fillStyle = look.back;
  pen.fillRect(0, 0, view.width, AXIS - 1);
  drawAxis(false);
  if (view.cursor !== null && view.cursor > view.left) {
    pen.fillStyle = look.mark;
    pen.fillRect(view.cursor, AXIS - 6, 1, view.height);
  }
  const high = view.height - AXIS;
  if (view.laneHeight > high + 1) {
    pen.fillStyle = look.arrow;
    pen.fillRect(
      view.width - 5,
      AXIS + (view.top / view.laneHeight) * high,
      4,
      (high / view.laneHeight) * high,
    );
  }
}
