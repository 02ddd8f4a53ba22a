// Markdown and LaTeX of a model's answer, drawn safely. What a model writes is untrusted, so:
// 1. its raw HTML is shown as text, images become links, links lead to http, https and mailto only;
// 2. DOMPurify lets nothing but the few tags and attributes below into the page;
// 3. formulas are drawn by KaTeX (trust: false) from plain text, after that;
// 4. the server's Content-Security-Policy runs and loads nothing from elsewhere.

import { Marked } from "./vendor/marked/marked.esm.js";

const { DOMPurify, katex } = window;

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"], // the expression is held against all other attributes
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const MATH = {
  trust: false,
  strict: "ignore", // Chinese in a formula is no reason for a warning
  maxExpand: 200, // macro expansions
  maxSize: 50, // em
};

function escapeHtml(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (character) => names[character]);
}

function link(href, html) {
  return ALLOWED.ALLOWED_URI_REGEXP.test(href) ? `<a href="${escapeHtml(href)}">${html}</a>` : html;
}

const renderer = {
  html({ text, block }) {
    if (/^<br *\/?>$/i.test(text.trim())) return "<br>";
    return block ? `<p>${escapeHtml(text.trim())}</p>` : escapeHtml(text);
  },
  image: ({ href, text }) => link(href, escapeHtml(text || href)),
  link({ href, tokens }) {
    return link(href, this.parser.parseInline(tokens));
  },
  checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
};

// The lengths are bounded, so that many openings without an end stay cheap.
const BLOCK_MATH = /^ {0,3}(?:\$\$([^]{1,8000}?)\$\$|\\\[([^]{1,8000}?)\\\])[ \t]*(?:\n|$)/;
const DISPLAY_MATH = /^(?:\$\$([^]{1,8000}?)\$\$|\\\[([^]{1,8000}?)\\\])/;
// A dollar sign that stands before a space, or closes before a digit, is money.
const INLINE_MATH = /^(?:\\\(([^]{1,4000}?)\\\)|\$(?![\s$])((?:\\.|[^\\$\n]){1,4000}?)(?<!\s)\$(?!\d))/;

function mathToken(type, match, display) {
  return match && { type, raw: match[0], tex: match[1] ?? match[2], display };
}

function drawToken({ tex, display }) {
  const code = `<code class="math${display ? " display" : ""}">${escapeHtml(tex)}</code>`;
  return display ? code + "\n" : code;
}

const blockMath = {
  name: "blockMath",
  level: "block",
  start: (text) => text.match(/\n {0,3}(?:\$\$|\\\[)/)?.index,
  tokenizer: (text) => mathToken("blockMath", BLOCK_MATH.exec(text), true) ?? undefined,
  renderer: drawToken,
};

const inlineMath = {
  name: "inlineMath",
  level: "inline",
  start: (text) => text.match(/\$|\\[([]/)?.index,
  tokenizer: (text) =>
    mathToken("inlineMath", DISPLAY_MATH.exec(text), true) ??
    mathToken("inlineMath", INLINE_MATH.exec(text), false) ??
    undefined,
  renderer: drawToken,
};

const marked = new Marked({ gfm: true, breaks: true, renderer, extensions: [blockMath, inlineMath] });

/** What may be shown of `html`, as a DocumentFragment. */
export function sanitize(html) {
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  for (const anchor of fragment.querySelectorAll("a")) {
    anchor.target = "_blank";
    anchor.rel = "noopener noreferrer";
  }
  return fragment;
}

/** A Node of the Markdown `text`; text that cannot be parsed (nested too deep) stays as it is. */
export function renderMarkdown(text) {
  let fragment;
  try {
    fragment = sanitize(marked.parse(text));
  } catch {
    const plain = document.createElement("p");
    plain.className = "plain";
    plain.textContent = text;
    return plain;
  }
  for (const code of fragment.querySelectorAll("code.math")) drawMath(code);
  for (const table of fragment.querySelectorAll("table")) {
    const box = document.createElement("div"); // scrolls where the table is wider than the page
    box.className = "table";
    table.replaceWith(box);
    box.append(table);
  }
  return fragment;
}

/** Puts the formula in place of its LaTeX; LaTeX that KaTeX does not know stays as it is. */
function drawMath(code) {
  const displayMode = code.classList.contains("display");
  const formula = document.createElement("span");
  formula.className = code.className;
  try {
    katex.render(code.textContent, formula, { ...MATH, displayMode, throwOnError: true });
  } catch {
    return;
  }
  code.replaceWith(formula);
}
