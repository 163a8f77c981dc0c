// The settings, kept by the browser, and the API's address with a line to copy.
const FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed", "key"];
const KEY = "futensor-chat",
  defaults = Object.fromEntries(FIELDS.map(id => [id, $(id).value]));
let model = null;

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}
function keep() {
  const all = Object.fromEntries(FIELDS.map(id => [id, $(id).value]));
  try {
    localStorage.setItem(KEY, JSON.stringify(all));
  } catch {
    /* They are kept as long as the page is. */
  }
}

// What a request has besides its messages. What is no number is left to the server.
function settings() {
  const number = id =>
    $(id).value === "" || !$(id).checkValidity() ? undefined : Number($(id).value);
  const all = {
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
}
const authorization = () =>
  $("key").value ? { authorization: `Bearer ${$("key").value}` } : {};
const system = () =>
  $("system").value.trim() ? [{ role: "system", content: $("system").value.trim() }] : [];

function showSettings() {
  for (const output of document.querySelectorAll("#settings output"))
    output.textContent = Number($(output.htmlFor.value).value).toFixed(2);
  const base = new URL("v1", document.baseURI).href,
    body = {
      ...(model && { model }),
      messages: [...system(), { role: "user", content: "Hello" }],
      ...settings(),
    };
  // A quote within quotes, as shells want it.
  const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
  $("address").textContent = base;
  $("curl").textContent = [
    `curl ${quoted(base + "/chat/completions")}`,
    "-H 'content-type: application/json'",
    ...($("key").value ? ["-H 'authorization: Bearer KEY'"] : []),
    `-d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n  ");
}

function fill(values) {
  for (const id of FIELDS) if (typeof values[id] === "string") $(id).value = values[id];
  showSettings();
}

for (const id of FIELDS)
  $(id).addEventListener("input", () => {
    keep();
    showSettings();
  });
$("defaults").onclick = () => {
  fill(defaults);
  keep();
};
for (const button of document.querySelectorAll("[data-copies]"))
  button.onclick = () => copy($(button.dataset.copies).textContent, button);

function openPanel(is) {
  document.body.classList.toggle("open", is);
  $("panel").setAttribute("aria-expanded", is);
}
$("panel").onclick = () => openPanel(!document.body.classList.contains("open"));
$("close").onclick = () => {
  openPanel(false);
  $("panel").focus();
};
openPanel(matchMedia("(min-width: 1100px)").matches);
fill(kept());

// The model's name and its device: as soon as the server says them.
async function introduce() {
  try {
    const [models, health] = await Promise.all(
      ["v1/models", "healthz"].map(async path =>
        (await fetch(path, { headers: authorization() })).json(),
      ),
    );
    model = models.data[0].id;
    $("model").textContent = document.title = model;
    $("device").textContent = `on ${health.device}`;
    showSettings();
  } catch {
    /* The first message says what is wrong. */
  }
}
introduce();
$("key").addEventListener("change", introduce);
