// All of one bar, in words. Texts are of a user's program: they are set as text, never as HTML.
function made(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function pairs(all) {
  const list = made("dl");
  for (const [name, value] of all) list.append(made("dt", name), made("dd", value));
  return list;
}

// Bars as buttons that lead to them.
const LINKS_MAX = 30;
function links(title, some) {
  if (!some.length) return [];
  const list = made("ol");
  for (const bar of some.slice(0, LINKS_MAX)) {
    const item = made("li"),
      button = made("button", `${bar.label} (${lanes[bar.lane].title})`);
    button.onclick = () => {
      select(bar);
      reveal(bar);
    };
    item.append(button);
    list.append(item);
  }
  if (some.length > LINKS_MAX)
    list.append(made("li", `and ${some.length - LINKS_MAX} more`, "more"));
  return [made("h3", title), list];
}

function ofStep(step) {
  const lane = lanes[step.lane],
    skipped = lane.kind === "skipped";
  const ops = made("ol");
  for (const op of step.ops) {
    const item = made("li");
    item.append(
      made("b", op.name),
      ` ${op.value}`,
      made("span", op.written || skipped ? op.line : `${op.line}, fused away`),
    );
    ops.append(item);
  }
  const times = skipped
    ? [
        ["skipped", "nobody observed it any more"],
        ["at", span(step.a - FROM)],
      ]
    : [
        ["ran on", lane.title],
        ["began", span(step.a - FROM)],
        ["took", span(step.b - step.a)],
        ["ended", span(step.b - FROM)],
        ["times", step.byDevice ? "the device's own" : "the host's"],
      ];
  return [
    pairs([["kind", step.family], ...times]),
    made("h3", count(step.ops.length, "op", "ops, in the order of the data")),
    ops,
    ...links(
      "It needed",
      step.needs.map(at => steps[at]),
    ),
    ...links(
      "Needed by",
      step.neededBy.map(at => steps[at]),
    ),
    ...links("Who waited for it", step.waiters),
  ];
}

function ofAwait(one) {
  const dry = one.dry ? "yes: it had nothing left to do" : "no";
  return [
    pairs([
      ["task", lanes[one.lane].title],
      ["line", one.line],
      ["began", span(one.a - FROM)],
      ["waited", span(one.b - one.a)],
      ["queued", `${count(one.queued, "op", "ops")} when it began`],
      ["ran dry", dry],
    ]),
    ...links("What ended the wait", one.step ? [one.step] : []),
  ];
}

function showDetails() {
  const bar = view.selected;
  $("details").replaceChildren(
    ...(bar
      ? [made("h2", bar.label), ...(bar.isStep ? ofStep(bar) : ofAwait(bar))]
      : [
          made(
            "p",
            "Point at a step to see its name; a click, or the arrow keys, tell all of it here.",
          ),
        ]),
  );
}

function select(bar) {
  view.selected = bar;
  showDetails();
  redraw();
}

// A few words beside the pointer.
function showTip(bar, x, y) {
  const tip = $("tip");
  tip.hidden = !bar;
  if (!bar) return;
  const length = bar.isStep
    ? `${span(bar.b - bar.a)} on ${lanes[bar.lane].title}`
    : `${lanes[bar.lane].title} waited ${span(bar.b - bar.a)}`;
  const value =
    bar.isStep && bar.ops.length ? [made("span", bar.ops[bar.ops.length - 1].value)] : [];
  tip.replaceChildren(made("b", bar.label), ...value, made("span", length));
  tip.style.left = Math.max(4, Math.min(x + 12, view.width - tip.offsetWidth - 8)) + "px";
  const below = y + 18;
  tip.style.top =
    (below + tip.offsetHeight > view.height ? Math.max(0, y - tip.offsetHeight - 10) : below) +
    "px";
}
