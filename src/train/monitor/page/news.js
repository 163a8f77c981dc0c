// Looks for news while the training runs: a script beside the page, which calls `news`. That works
// for a page that was opened as a file, too, where nothing else may be loaded.
let source = null;
function watch(name) {
  source = name;
}
function news(data) {
  show(data);
}

function look() {
  if (!source || shown?.status !== "runs") return;
  const script = document.createElement("script");
  const next = () => {
    script.remove();
    setTimeout(look, Math.max(shown.every, 250));
  };
  script.src = `${encodeURIComponent(source)}?${Date.now()}`;
  script.onload = script.onerror = next;
  document.head.append(script);
}
setTimeout(look, 500);
