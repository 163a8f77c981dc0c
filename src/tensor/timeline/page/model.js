// What was recorded, as this page uses it: steps and awaits as bars, and the rows that they lie in.
"use strict";
const $ = id => document.getElementById(id);
const given = JSON.parse($("recording").textContent),
  said = at => given.texts[at];

const span = us =>
  us >= 1e6
    ? (us / 1e6).toFixed(2) + " s"
    : us >= 1e3
      ? (us / 1e3).toFixed(2) + " ms"
      : us.toFixed(us < 10 ? 2 : 1) + " us";
const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// What a step is called: its ops, and the line of the last.
function titled(ops) {
  const names = ops.map(op => op.name),
    last = ops[ops.length - 1];
  const all =
    names.length > 6 ? `${names[0]} ... ${last.name} (${names.length} ops)` : names.join(" + ");
  return last ? `${all}  ${last.place}` : all;
}

const steps = given.steps.map(([lane, family, a, b, byDevice, ops, needs], index) => {
  ops = ops.map(([name, value, place, line, written]) => ({
    name: said(name),
    value: said(value),
    place: said(place),
    line: said(line),
    written,
  }));
  return {
    index,
    isStep: true,
    lane,
    family: said(family),
    a,
    b,
    byDevice,
    ops,
    needs,
    label: titled(ops),
    neededBy: [],
    waiters: [],
  };
});
const awaits = given.awaits.map(([lane, what, a, b, place, line, queued, dry, step], index) => ({
  index,
  isStep: false,
  lane,
  family: dry ? "await, ran dry" : "await",
  a,
  b,
  what: said(what),
  place: said(place),
  line: said(line),
  queued,
  dry,
  step: step === null ? null : steps[step],
  label: `${said(what)}  ${said(place)}`,
}));
for (const step of steps) for (const from of step.needs) steps[from].neededBy.push(step.index);
for (const one of awaits) if (one.step) one.step.waiters.push(one);
const bars = [...steps, ...awaits];

// What a search looks at; made when somebody first searches.
function searched(bar) {
  bar.words ??= (
    bar.isStep
      ? bar.ops.map(op => `${op.name} ${op.value} ${op.line}`).join(" ")
      : `${bar.what} ${bar.line} ${lanes[bar.lane].title}`
  ).toLowerCase();
  return bar.words;
}

const lanes = given.lanes.map(([title, kind]) => ({ title, kind, bars: [] }));
if (steps.some(step => step.lane === lanes.length))
  lanes.push({ title: "skipped", kind: "skipped", bars: [] });
for (const bar of bars) lanes[bar.lane].bars.push(bar);

// Bars of one lane that overlap lie in rows below each other. `reach` is the latest end up to each
// bar, for a search by halves: what is one row too many shares the last.
const ROWS_MAX = 12;
for (const lane of lanes) {
  lane.bars.sort((x, y) => x.a - y.a || x.b - y.b);
  lane.rows = [{ bars: [], reach: [] }];
  for (const bar of lane.bars) {
    const end = row => (row.reach.length ? row.reach[row.reach.length - 1] : -Infinity);
    let at = lane.rows.findIndex(row => end(row) <= bar.a || lane.kind === "skipped");
    if (at < 0)
      at = lane.rows.length < ROWS_MAX ? lane.rows.push({ bars: [], reach: [] }) - 1 : ROWS_MAX - 1;
    const row = lane.rows[at];
    bar.row = row;
    bar.at = row.bars.push(bar) - 1;
    row.reach.push(Math.max(end(row), bar.b));
  }
}

// The first of a row that ends after this time.
function firstAfter(row, time) {
  let [low, high] = [0, row.bars.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.reach[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

const begin = bars.reduce((least, bar) => Math.min(least, bar.a), Infinity);
const FROM = Number.isFinite(begin) ? begin : 0;
const TO = Math.max(
  bars.reduce((most, bar) => Math.max(most, bar.b), FROM),
  FROM + 1e-3,
);
const idle = given.idle.reduce((sum, [a, b]) => sum + b - a, 0);
$("summary").textContent =
  `${count(steps.length, "step", "steps")} in ${span(TO - FROM)}; idle for ${span(idle)} of it; ` +
  `${count(awaits.length, "await", "awaits")} that waited`;
