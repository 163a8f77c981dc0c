// A model's Markdown as elements. What a model writes may have come from anybody: its HTML is shown
// as text, pictures become links (to load one would tell its server what was said), and of what is
// left only the tags and links below get through.
"use strict";
const $ = id => document.getElementById(id);

const TAGS = [
  "p",
  "br",
  "strong",
  "em",
  "del",
  "code",
  "pre",
  "ul",
  "ol",
  "li",
  "blockquote",
  "h1",
  "h2",
  "h3",
  "h4",
  "h5",
  "h6",
  "hr",
  "a",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
];
const SAFE = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = text => text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
marked.use({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || "picture")}</a>`,
    checkbox: ({ checked }) => (checked ? "\u2611 " : "\u2610 "),
  },
});
DOMPurify.addHook("afterSanitizeAttributes", node => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

function markdown(text) {
  const made = DOMPurify.sanitize(marked.parse(text), SAFE);
  for (const block of made.querySelectorAll("pre")) {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.onclick = () => copy(block.querySelector("code")?.textContent ?? "", button);
    block.append(button);
  }
  return made;
}

// Without a secure page there is no clipboard but by a selection.
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = before;
  }, 1200);
}
