// What is in sight: which time, how far down, and where each row lies on the screen.
const canvas = $("canvas"),
  pen = canvas.getContext("2d"),
  AXIS = 24;
const view = {
  from: FROM,
  length: TO - FROM,
  top: 0,
  width: 0,
  height: 0,
  left: 0,
  hover: null,
  selected: null,
  cursor: null,
  found: null,
  hidden: new Set(),
  arrows: true,
  laneHeight: 0,
};
// No more is seen of a nanosecond.
const LENGTH_MIN = Math.min(0.001, TO - FROM);

const scale = () => (view.width - view.left - 8) / view.length;
const xOf = time => view.left + (time - view.from) * scale();
const timeOf = x => view.from + (x - view.left) / scale();

// Rows are as high as there is room for them; on a narrow screen a lane's name stands above it.
function layOut() {
  const box = canvas.parentElement.getBoundingClientRect(),
    ratio = window.devicePixelRatio || 1;
  [view.width, view.height] = [box.width, box.height];
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const narrow = box.width < 600,
    rows = lanes.reduce((sum, lane) => sum + lane.rows.length, 0);
  pen.font = "12px system-ui, sans-serif";
  const longest = lanes.reduce(
    (most, lane) => Math.max(most, pen.measureText(lane.title).width),
    60,
  );
  view.left = narrow ? 6 : Math.min(Math.ceil(longest) + 26, 230);
  view.named = narrow ? 17 : 0;
  const room = box.height - AXIS - lanes.length * (view.named + 6) - 8;
  view.row = Math.max(20, Math.min(34, Math.floor(room / Math.max(rows, 1))));
  let y = 4;
  for (const lane of lanes) {
    lane.top = y;
    y += view.named;
    for (const row of lane.rows) {
      row.top = y;
      y += view.row;
    }
    lane.bottom = y;
    y += 6;
  }
  view.laneHeight = y;
  hold();
}

// Nothing beyond the recording's ends is looked at.
function hold() {
  view.length = Math.min(Math.max(view.length, LENGTH_MIN), TO - FROM);
  view.from = Math.min(Math.max(view.from, FROM), TO - view.length);
  view.top = Math.max(0, Math.min(view.top, view.laneHeight - (view.height - AXIS)));
  redraw();
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

function zoom(by, x) {
  const time = timeOf(x ?? view.left + (view.width - view.left) / 2),
    share = (time - view.from) / view.length;
  view.length = Math.min(Math.max(view.length / by, LENGTH_MIN), TO - FROM);
  view.from = time - share * view.length;
  hold();
}

function move(share) {
  view.from += share * view.length;
  hold();
}
function showAll() {
  view.from = FROM;
  view.length = TO - FROM;
  hold();
}

// Brings a bar into sight; `close` zooms in on it.
function reveal(bar, close) {
  if (close) {
    view.length = Math.max(bar.b - bar.a, LENGTH_MIN) * 3;
    view.from = (bar.a + bar.b - view.length) / 2;
  } else if (bar.b < view.from || bar.a > view.from + view.length)
    view.from = (bar.a + bar.b - view.length) / 2;
  const y = bar.row.top,
    high = view.height - AXIS;
  if (y < view.top || y + view.row > view.top + high) view.top = y - high / 2;
  hold();
}

const isShown = bar => !view.hidden.has(bar.family);

// The bar at a place of the screen, or the nearest within some pixels: fingers are wide.
function barAt(x, y, reach) {
  const down = y - AXIS + view.top;
  for (const lane of lanes)
    for (const row of lane.rows) {
      if (y < AXIS || down < row.top || down >= row.top + view.row) continue;
      let best = null,
        least = reach;
      for (
        let k = firstAfter(row, timeOf(x - reach));
        k < row.bars.length && xOf(row.bars[k].a) <= x + reach;
        k++
      ) {
        const bar = row.bars[k],
          away = Math.max(xOf(bar.a) - x, x - Math.max(xOf(bar.b), xOf(bar.a) + 1), 0);
        if (isShown(bar) && away <= least) {
          best = bar;
          least = away;
          if (away === 0) break;
        }
      }
      return best;
    }
  return null;
}
