// The conversation. An answer that was stopped, or failed, is marked, and neither it nor what it
// answered is sent again.
let exchanges = [],
  running = null;

const made = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// The view follows the answer, until its reader scrolls up.
const talk = $("talk");
let follows = true,
  before = 0;
talk.addEventListener("scroll", () => {
  const left = talk.scrollHeight - talk.clientHeight - talk.scrollTop;
  if (left < 32) follows = true;
  else if (talk.scrollTop < before) follows = false;
  before = talk.scrollTop;
  $("down").hidden = follows;
});
talk.addEventListener(
  "wheel",
  event => {
    if (event.deltaY < 0 && talk.scrollTop > 0) {
      follows = false;
      $("down").hidden = false;
    }
  },
  { passive: true },
);
function follow() {
  if (follows) talk.scrollTop = talk.scrollHeight;
  else $("down").hidden = false;
}
$("down").onclick = () => {
  follows = true;
  follow();
};
new ResizeObserver(follow).observe(talk);

// Markdown is made anew as the answer grows, and takes a fifth of the time at most.
class Answer {
  constructor() {
    this.article = made("article", "assistant");
    this.body = this.article.appendChild(made("div", "body waits"));
    this.foot = this.article.appendChild(made("footer"));
    this.article.setAttribute("aria-busy", "true");
    Object.assign(this, {
      text: "",
      tokens: 0,
      asked: performance.now(),
      first: null,
      last: null,
      next: 0,
      timer: null,
    });
    talk.append(this.article);
  }
  add(text) {
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens += 1;
    this.text += text;
    this.timer ??= setTimeout(() => this.draw(), Math.max(0, this.next - this.last));
  }
  draw() {
    this.timer = null;
    const began = performance.now();
    this.body.replaceChildren(markdown(this.text));
    this.next = performance.now() + Math.max(40, 4 * (performance.now() - began));
    this.foot.textContent = this.speed();
    follow();
  }
  speed() {
    if (this.first === null) return "";
    const [first, rest] = [this.first - this.asked, (this.last - this.first) / 1e3];
    const rate =
      this.tokens > 1 && rest > 0 ? `, ${((this.tokens - 1) / rest).toFixed(1)} a second` : "";
    const after = first >= 1e3 ? `${(first / 1e3).toFixed(1)} s` : `${first.toFixed(0)} ms`;
    const count = this.tokens === 1 ? "1 token" : `${this.tokens} tokens`;
    return `${count}${rate}; the first after ${after}`;
  }
  // `why` where it is half.
  end(why, note) {
    clearTimeout(this.timer);
    this.draw();
    this.body.classList.remove("waits");
    this.article.removeAttribute("aria-busy");
    this.article.classList.toggle("half", !!why);
    if (why) this.foot.prepend(made("span", "why", why));
    if (note) this.foot.append(made("span", "", note));
    if (this.text) {
      const button = made("button", "", "Copy");
      button.onclick = () => copy(this.text, button);
      this.foot.append(button);
    }
    follow();
  }
}

async function send(text) {
  $("hint").hidden = true;
  const question = made("article", "user", text),
    control = new AbortController();
  talk.append(question);
  const exchange = { text, answer: null },
    answer = new Answer();
  const history = exchanges
    .filter(one => one.answer !== null)
    .flatMap(one => [
      { role: "user", content: one.text },
      { role: "assistant", content: one.answer },
    ]);
  exchanges.push(exchange);
  [running, follows] = [control, true];
  $("send").textContent = "Stop";
  $("state").textContent = "the model answers";
  follow();
  let why = null,
    note = null;
  try {
    const end = await ask(
      [...system(), ...history, { role: "user", content: text }],
      control.signal,
      token => answer.add(token),
    );
    exchange.answer = answer.text;
    if (end === "length") note = "ended at the limit of tokens";
  } catch (error) {
    why = control.signal.aborted
      ? "Stopped."
      : error instanceof Fault
        ? error.message
        : `This page went wrong: ${error.message}`;
    why += answer.text ? " Half an answer: it is not sent again, nor is its question." : "";
  }
  answer.end(why, note);
  const again = made("button", "", "Again");
  again.onclick = () => {
    if (running) return;
    exchanges = exchanges.filter(one => one !== exchange);
    question.remove();
    answer.article.remove();
    send(text);
  };
  answer.foot.append(again);
  // Of another chat, once this one was left.
  if (running !== control) return;
  running = null;
  $("send").textContent = "Send";
  $("state").textContent = why ?? answer.speed();
}

function stop() {
  running?.abort();
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (running) return stop();
  const text = $("text").value.trim();
  if (!text) return;
  $("text").value = "";
  grow();
  send(text);
});
function grow() {
  $("text").style.height = "auto";
  $("text").style.height = $("text").scrollHeight + 2 + "px";
}
$("text").addEventListener("input", grow);
$("text").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $("form").requestSubmit();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") stop();
});
$("new").onclick = () => {
  stop();
  running = null;
  exchanges = [];
  for (const article of talk.querySelectorAll("article")) article.remove();
  $("hint").hidden = false;
  $("send").textContent = "Send";
  $("state").textContent = "ready";
  $("text").focus();
};

// #q=TEXT asks at once: for links, and for tests.
const wanted = decodeURIComponent(location.hash).match(/^#q=(.+)/s);
if (wanted) send(wanted[1]);
