// How a message looks: reasoning, answer, why it ended, speeds, error.

import { renderMarkdown } from "./markdown.js";
import { t } from "./strings.js";

const REST = 4; // drawing may take 1 / (1 + REST) of the time, however long the answer is

function make(tag, className, parent) {
  const element = document.createElement(tag);
  element.className = className;
  parent?.append(element);
  return element;
}

function show(element, text) {
  element.hidden = !text;
  if (element.textContent !== text) element.textContent = text;
}

/** The element of a user's message: plain text. */
export function questionElement(message) {
  const element = make("article", "message user");
  element.setAttribute("aria-label", t("you"));
  element.textContent = message.content;
  return element;
}

export class AnswerView {
  /** name: the model's; onRetry() asks again, null: nothing to ask again. */
  constructor(message, name, onRetry) {
    this.message = message;
    this.element = make("article", "message assistant");
    this.element.setAttribute("aria-label", name);
    this.reasoning = make("details", "reasoning", this.element);
    this.summary = make("summary", "", this.reasoning);
    this.thoughts = make("div", "markdown", this.reasoning);
    this.state = make("p", "state", this.element);
    this.answer = make("div", "markdown answer", this.element);
    this.finish = make("p", "finish", this.element);
    this.error = make("p", "error", this.element);
    this.error.setAttribute("role", "alert");
    this.errorText = make("span", "", this.error);
    this.retry = make("button", "", this.error);
    this.retry.type = "button";
    this.retry.hidden = !onRetry;
    this.retry.addEventListener("click", onRetry);
    this.stats = make("p", "stats", this.element);
    this.summary.addEventListener("click", () => (this.folded = true));
    this.thoughts.text = this.answer.text = "";
    this.folded = false; // by the user, who then decides alone
    this.timer = null;
  }

  /** Draws the message; run: the Run that it still comes from, or null. */
  update(run) {
    const { message } = this;
    this.element.ariaBusy = String(run !== null);
    this.updateClock(run);
    this.reasoning.hidden = !message.reasoning;
    if (!this.folded) this.reasoning.open = run?.phase === "thinking";
    this.draw(this.thoughts, message.reasoning, run);
    this.draw(this.answer, message.content, run);
    show(this.finish, run ? "" : finishText(message));
    this.error.hidden = run !== null || !message.error;
    show(this.errorText, message.error ? errorText(message.error) : "");
    this.retry.textContent = t("retry");
    show(this.stats, run ? "" : statsText(message));
  }

  /** The elapsed time of waiting and thinking. */
  updateClock(run) {
    const seconds = run?.seconds.toFixed(1);
    show(this.state, run?.phase === "waiting" ? t("waiting", { seconds }) : "");
    this.reasoning.classList.toggle("thinking", run?.phase === "thinking");
    if (run?.phase === "thinking") {
      show(this.summary, t("thinking", { seconds }));
    } else if (this.message.reasoning) {
      show(this.summary, t("thoughtFor", { seconds: (this.message.thinkingSeconds ?? 0).toFixed(1) }));
    }
  }

  /** Draws `text` if it has changed; while it streams, no more often than its length allows. */
  draw(place, text, run) {
    const now = performance.now();
    if (place.text === text || (run && now < place.notBefore)) return;
    place.text = text;
    place.replaceChildren(renderMarkdown(text));
    const end = performance.now();
    place.notBefore = end + REST * (end - now);
  }
}

function finishText({ finish, content, reasoning }) {
  if (finish === "cancelled") return t("finishCancelled");
  if (finish === "repetition") return t("finishRepetition");
  if (finish !== "length") return "";
  if (content) return t("cutAnswer");
  return t(reasoning ? "cutThinking" : "cutPrompt");
}

function errorText({ kind, status, text, seconds }) {
  if (kind === "key") return t("wantsKey");
  if (kind === "network") return t("networkLost");
  if (kind === "busy") return seconds === null ? t("serverBusy") : t("serverBusySeconds", { seconds });
  return t("serverSays", { status, text });
}

function statsText({ firstSeconds, tokens, speed }) {
  const parts = [];
  if (speed !== null) parts.push(t("speed", { speed: speed.toFixed(1) }));
  if (tokens !== null) parts.push(t("tokens", { n: tokens }));
  if (parts.length) parts.push(t("firstToken", { seconds: firstSeconds.toFixed(1) }));
  return parts.join(" · ");
}
