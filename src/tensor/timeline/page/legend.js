// The legend, which hides and shows kinds of ops, and the search.
function learnLegend() {
  const sums = new Map();
  for (const bar of bars) {
    const sum = sums.get(bar.family) ?? { n: 0, time: 0, isStep: bar.isStep };
    sum.n += 1;
    sum.time += bar.b - bar.a;
    sums.set(bar.family, sum);
  }
  const order = [...sums].sort(([, x], [, y]) => y.isStep - x.isStep || y.time - x.time);
  const entries = order.map(([name, sum]) => [
    name,
    colors[name],
    `${sum.n.toLocaleString("en")}, ${span(sum.time)}`,
  ]);
  if (given.idle.length) entries.push(["idle", look.idle, "the device runs nothing"]);
  const edges = {
    await: look["await-line"],
    "await, ran dry": look["dry-line"],
    idle: look["dry-line"],
  };
  $("legend").replaceChildren(
    ...entries.map(([name, color, text]) => {
      const button = made("button"),
        swatch = made("i");
      swatch.style.background = color;
      if (edges[name]) swatch.style.borderColor = edges[name];
      button.append(swatch, made("span", name), made("small", text));
      button.title = `Hides and shows: ${name}`;
      button.setAttribute("aria-pressed", !view.hidden.has(name));
      button.onclick = () => {
        if (!view.hidden.delete(name)) view.hidden.add(name);
        button.setAttribute("aria-pressed", !view.hidden.has(name));
        find(false);
        redraw();
      };
      return button;
    }),
  );
  const arrows = made("button");
  arrows.append(made("span", "arrows"), made("small", "a step needed what another stream made"));
  arrows.setAttribute("aria-pressed", view.arrows);
  arrows.onclick = () => {
    view.arrows = !view.arrows;
    arrows.setAttribute("aria-pressed", view.arrows);
    redraw();
  };
  $("legend").append(arrows);
}

// All words have to be there, in whatever order.
function find(go) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length
    ? bars
        .filter(bar => isShown(bar) && words.every(word => searched(bar).includes(word)))
        .sort((x, y) => x.a - y.a)
    : null;
  view.found = found && { list: found, set: new Set(found) };
  $("found").textContent = !found
    ? ""
    : found.length
      ? `${found.length.toLocaleString("en")} found`
      : "nothing found";
  $("previous").disabled = $("next").disabled = !found?.length;
  if (
    go &&
    found?.length &&
    !found.some(bar => bar.b >= view.from && bar.a <= view.from + view.length)
  )
    reveal(found[0]);
  redraw();
}

// The next that was found after the selected one, or after what is seen first.
function goOn(by) {
  const list = view.found?.list;
  if (!list?.length) return;
  const at = view.selected ? list.indexOf(view.selected) : -1,
    time = view.selected ? view.selected.a : view.from;
  const after = list.findIndex(bar => bar.a >= time);
  const next = at >= 0 ? at + by : after < 0 ? (by > 0 ? 0 : -1) : by > 0 ? after : after - 1;
  const bar = list[(next + list.length) % list.length];
  select(bar);
  reveal(bar);
  $("found").textContent = `${list.indexOf(bar) + 1} of ${list.length.toLocaleString("en")}`;
}
