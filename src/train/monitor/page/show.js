// What the page says. Names are of a user's program: they are set as text, never as HTML.
const charts = new Map();
let shown = null;

const time = s =>
  s >= 3600
    ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
    : s >= 60
      ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`
      : s >= 1
        ? `${s.toFixed(1)} s`
        : `${(s * 1e3).toFixed(0)} ms`;
const wait = us =>
  us >= 1e6
    ? (us / 1e6).toFixed(2) + " s"
    : us >= 1e3
      ? (us / 1e3).toFixed(2) + " ms"
      : us.toFixed(1) + " us";

function showNumbers(data) {
  const loss = data.series.find(curve => curve.name === "loss");
  const all = [
    ["steps", data.steps.toLocaleString("en")],
    ["time", time(data.seconds)],
    ["steps a second", short(data.steps / Math.max(data.seconds, 1e-9))],
    ["loss", short(loss?.last)],
    ["waits", data.awaits.toLocaleString("en")],
    ["device ran dry", data.ranDry.toLocaleString("en")],
    ["device", data.device],
  ];
  if (data.leftOut) all.push(["values left out", data.leftOut.toLocaleString("en")]);
  $("numbers").replaceChildren(
    ...all.map(([name, value]) => {
      const [pair, dt, dd] = ["div", "dt", "dd"].map(tag => document.createElement(tag));
      dt.textContent = name;
      dd.textContent = value;
      pair.append(dt, dd);
      return pair;
    }),
  );
}

function showSites(data) {
  const head = ["line", "what", "awaits", "waited", "total", "worst", "ran dry"];
  const rows = data.sites.map(([place, what, count, waited, total, worst, dry]) => [
    place,
    what,
    count,
    waited,
    wait(total),
    wait(worst),
    dry,
  ]);
  $("nowhere").hidden = rows.length > 0;
  $("sites").replaceChildren(
    ...(rows.length ? [head, ...rows] : []).map((cells, at) => {
      const row = document.createElement("tr");
      for (const text of cells)
        row.appendChild(document.createElement(at ? "td" : "th")).textContent = text;
      return row;
    }),
  );
}

// How old the news are: a training that was killed says nothing.
function showStatus() {
  if (!shown) return;
  const old = (Date.now() - shown.written) / 1e3,
    runs = shown.status === "runs";
  const silent = runs && old > 5 + (3 * shown.every) / 1e3;
  $("status").className = silent ? "silent" : shown.status;
  $("status").textContent = silent
    ? `no news for ${time(old)}`
    : runs
      ? "runs"
      : shown.status === "ended"
        ? "has ended"
        : "was given up";
}

function show(data) {
  if (shown && data.written < shown.written) return;
  shown = data;
  showNumbers(data);
  showSites(data);
  showStatus();
  $("failed").hidden = !data.failed;
  $("failed").textContent = data.failed ?? "";
  for (const curve of data.series) {
    if (!charts.has(curve.name)) {
      charts.set(curve.name, new Chart(curve.name));
      $("charts").append(charts.get(curve.name).figure);
    }
    charts.get(curve.name).set(curve, +$("smooth").value);
  }
}

$("smooth").oninput = () => {
  for (const chart of charts.values()) {
    chart.smooth = +$("smooth").value;
    chart.draw();
  }
};
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.draw();
});
setInterval(showStatus, 1000);
