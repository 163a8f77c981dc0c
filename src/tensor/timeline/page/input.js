// What a person does: pointer, wheel, fingers, keys.
const place = event => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

canvas.addEventListener(
  "wheel",
  event => {
    event.preventDefault();
    const [x] = place(event),
      lines = event.deltaMode === 1 ? 16 : 1,
      [dx, dy] = [event.deltaX * lines, event.deltaY * lines];
    if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) move((dx || dy) / (view.width - view.left));
    else if (x < view.left && !view.named) {
      view.top += dy;
      hold();
    } else zoom(1.0016 ** -dy, Math.max(x, view.left));
  },
  { passive: false },
);

// Fingers or the mouse: one moves, two zoom; one that has not moved selects.
const held = new Map();
let moved = 0,
  apart = 0;
canvas.addEventListener("pointerdown", event => {
  canvas.focus({ preventScroll: true });
  if (held.size === 0) moved = 0;
  held.set(event.pointerId, place(event));
  canvas.setPointerCapture(event.pointerId);
  apart = distance();
});
const distance = () => {
  const [one, two] = [...held.values()];
  return two ? Math.abs(one[0] - two[0]) : 0;
};
canvas.addEventListener("pointermove", event => {
  const [x, y] = place(event),
    before = held.get(event.pointerId);
  if (!before) {
    view.hover = barAt(x, y, 3);
    view.cursor = x;
    canvas.style.cursor = view.hover ? "pointer" : "grab";
    showTip(view.hover, x, y);
    redraw();
    return;
  }
  held.set(event.pointerId, [x, y]);
  moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
  if (held.size === 2) {
    const now = distance(),
      [one, two] = [...held.values()];
    if (apart > 10 && now > 10) zoom(now / apart, (one[0] + two[0]) / 2);
    apart = now;
  } else if (moved > 4) {
    view.from -= (x - before[0]) / scale();
    if (event.pointerType === "mouse") view.top -= y - before[1];
    showTip(null);
    hold();
  }
});
function letGo(event) {
  if (held.delete(event.pointerId) && event.type === "pointerup" && held.size === 0 && moved <= 4) {
    select(barAt(...place(event), event.pointerType === "mouse" ? 3 : 14));
  }
  apart = distance();
}
canvas.addEventListener("pointerup", letGo);
canvas.addEventListener("pointercancel", letGo);
canvas.addEventListener("pointerleave", () => {
  view.hover = view.cursor = null;
  showTip(null);
  redraw();
});
canvas.addEventListener("dblclick", event => {
  const bar = barAt(...place(event), 3);
  if (bar) reveal(bar, true);
  else showAll();
});

// Beside the selected bar in its row, or in the nearest row of another lane.
function beside(by) {
  const from = view.selected;
  if (!from) return firstSeen();
  for (let k = from.at + by; from.row.bars[k]; k += by)
    if (isShown(from.row.bars[k])) return from.row.bars[k];
  return from;
}
function firstSeen() {
  const seen = bars.filter(
    bar => isShown(bar) && bar.b >= view.from && bar.a <= view.from + view.length,
  );
  return seen.reduce(
    (first, bar) =>
      !first || bar.row.top < first.row.top || (bar.row === first.row && bar.a < first.a)
        ? bar
        : first,
    null,
  );
}
function otherRow(by) {
  const from = view.selected,
    rows = lanes.flatMap(lane => lane.rows);
  if (!from) return firstSeen();
  for (let k = rows.indexOf(from.row) + by; rows[k]; k += by) {
    const near = rows[k].bars
      .filter(isShown)
      .sort((x, y) => Math.abs(x.a - from.a) - Math.abs(y.a - from.a))[0];
    if (near) return near;
  }
  return from;
}
function goTo(bar) {
  if (!bar) return;
  select(bar);
  reveal(bar);
}

const KEYS = {
  ArrowLeft: () => goTo(beside(-1)),
  ArrowRight: () => goTo(beside(1)),
  ArrowUp: () => goTo(otherRow(-1)),
  ArrowDown: () => goTo(otherRow(1)),
  Enter: () => view.selected && reveal(view.selected, true),
  Escape: () => select(null),
  "+": () => zoom(1.5),
  "=": () => zoom(1.5),
  "-": () => zoom(1 / 1.5),
  0: showAll,
  Home: () => {
    view.from = FROM;
    hold();
  },
  End: () => {
    view.from = TO;
    hold();
  },
  a: () => move(-0.2),
  d: () => move(0.2),
  PageUp: () => {
    view.top -= view.height / 2;
    hold();
  },
  PageDown: () => {
    view.top += view.height / 2;
    hold();
  },
  n: () => goOn(1),
  N: () => goOn(-1),
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === $("search")) {
    if (event.key === "Enter") {
      event.preventDefault();
      goOn(event.shiftKey ? -1 : 1);
    }
    if (event.key === "Escape") {
      $("search").value = "";
      find(false);
      canvas.focus();
    }
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    $("search").focus();
    return;
  }
  // Buttons keep Enter, and all that is outside the chart keeps what scrolls.
  const own = event.target === canvas || event.target === document.body;
  if (KEYS[event.key] && (own || event.key.length === 1)) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

$("search").oninput = () => find(true);
$("next").onclick = () => goOn(1);
$("previous").onclick = () => goOn(-1);
$("in").onclick = () => zoom(1.5);
$("out").onclick = () => zoom(1 / 1.5);
$("fit").onclick = showAll;
$("keys").onclick = () => {
  $("help").hidden = !$("help").hidden;
  $("keys").setAttribute("aria-expanded", !$("help").hidden);
};

function start() {
  learnColors();
  learnLegend();
  layOut();
}
new ResizeObserver(layOut).observe(canvas.parentElement);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", start);
start();
showDetails();
find(false);
