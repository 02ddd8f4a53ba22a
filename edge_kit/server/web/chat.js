// One answer on its way: what has come of it, and the clock. No part of the page is touched here.

import { ApiError, streamChat } from "./api.js";

const SHORTEST = 0.05; // seconds; what comes in less time came in one piece, and has no speed

/** An answer that has nothing yet. seconds: of waiting for the first token, and of thinking. */
export function newAnswer() {
  return {
    role: "assistant", content: "", reasoning: "", finish: null, error: null,
    firstSeconds: null, thinkingSeconds: null, tokens: null, speed: null,
  };
}

/** The messages that the model gets: no reasoning, and no question whose answer failed. */
export function history(messages) {
  const kept = [];
  for (const { role, content, error } of messages) {
    if (error && !content) kept.pop();
    else kept.push({ role, content });
  }
  return kept;
}

export class Run {
  /** session.messages ends with a question; its answer is appended. */
  constructor(session) {
    this.session = session;
    this.sent = history(session.messages);
    this.message = newAnswer();
    session.messages.push(this.message);
    this.controller = new AbortController();
    this.began = performance.now();
    this.firstAt = null;
    this.contentAt = null;
  }

  /** "waiting" for the first token, "thinking" or "answering". */
  get phase() {
    if (this.contentAt !== null) return "answering";
    return this.firstAt === null ? "waiting" : "thinking";
  }

  /** Seconds since this phase began. */
  get seconds() {
    return (performance.now() - (this.contentAt ?? this.firstAt ?? this.began)) / 1000;
  }

  stop() {
    this.controller.abort();
  }

  /** Streams the answer to its end, whichever that is; onChange is called for all that comes. */
  async stream({ model, maxTokens }, onChange) {
    const { message, sent, session } = this;
    let usage = null;
    let lastAt = null;
    try {
      const signal = this.controller.signal;
      for await (const item of streamChat({ session: session.id, model, messages: sent, maxTokens, signal })) {
        if (item.reasoning !== null || item.content !== null) lastAt = this.take(item);
        message.finish = item.finish ?? message.finish;
        usage = item.usage ?? usage;
        onChange();
      }
    } catch (error) {
      if (error.name === "AbortError") message.finish = "cancelled";
      else message.error = plain(error);
    }
    if (this.phase === "thinking") message.thinkingSeconds = this.seconds;
    this.measure(usage, lastAt);
  }

  take({ reasoning, content }) {
    const now = performance.now();
    if (this.firstAt === null) {
      this.firstAt = now;
      this.message.firstSeconds = (now - this.began) / 1000;
    }
    if (content !== null && this.contentAt === null) {
      if (this.message.reasoning) this.message.thinkingSeconds = this.seconds;
      this.contentAt = now;
    }
    this.message.reasoning += reasoning ?? "";
    this.message.content += content ?? "";
    return now;
  }

  /** Tokens per second between the first and the last token. */
  measure(usage, lastAt) {
    const tokens = usage?.completion_tokens;
    if (!tokens || this.firstAt === null) return;
    this.message.tokens = tokens;
    const seconds = (lastAt - this.firstAt) / 1000;
    if (tokens > 1 && seconds > SHORTEST) this.message.speed = (tokens - 1) / seconds;
  }
}

function plain(error) {
  if (!(error instanceof ApiError)) console.error(error);
  const { kind = "server", status = 0, text = String(error), seconds = null } = error;
  return { kind, status, text, seconds };
}
