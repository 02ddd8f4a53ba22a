// The server's HTTP interface: the OpenAI-compatible routes and /health.

import { readSetting } from "./settings.js";

/** Why no answer came. kind: "key" (401), "busy" (429), "network" or "server". */
export class ApiError extends Error {
  constructor(kind, { status = 0, text = "", seconds = null } = {}) {
    super(text || kind);
    Object.assign(this, { kind, status, text, seconds });
  }
}

function headers() {
  const key = readSetting("key");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError("network");
  }
  if (response.ok) return response;
  if (response.status === 401) throw new ApiError("key", { status: 401 });
  if (response.status === 429) {
    const seconds = parseInt(response.headers.get("Retry-After"), 10);
    throw new ApiError("busy", { status: 429, seconds: Number.isFinite(seconds) ? seconds : null });
  }
  throw new ApiError("server", { status: response.status, text: await errorText(response) });
}

async function errorText(response) {
  const text = await response.text().catch(() => "");
  try {
    return textOf(JSON.parse(text)) || response.statusText;
  } catch {
    return response.statusText;
  }
}

/** The message in {"error": {"message"}}, {"error"} or FastAPI's {"detail"}. */
function textOf(body) {
  const error = body.error ?? body.detail ?? "";
  const text = typeof error === "string" ? error : (error.message ?? JSON.stringify(error));
  return text.slice(0, 500);
}

const STATES = ["loading", "ready", "overloaded", "stopping"];

/** One of STATES; "unreachable" if nobody answers, or something else does. */
export async function health() {
  try {
    const body = await (await fetch("health")).json(); // 503 has a body too
    return STATES.includes(body.status) ? body.status : "unreachable";
  } catch {
    return "unreachable";
  }
}

/** The name of the model that is served. */
export async function modelName() {
  const body = await (await ask("v1/models")).json();
  return body.data[0].id;
}

/**
 * Streams an answer: yields {reasoning, content, finish, usage} as they come, each null if absent.
 * Throws ApiError, or AbortError after signal.abort().
 */
export async function* streamChat({ session, model, messages, maxTokens, signal }) {
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if (model) body.model = model;
  if (maxTokens) body.max_tokens = maxTokens;
  const response = await ask("v1/chat/completions", {
    method: "POST",
    // By the session the server knows its cache, and a balancer the server.
    headers: { "Content-Type": "application/json", "X-Session-Id": session },
    body: JSON.stringify(body),
    signal,
  });
  let finished = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const item = itemOf(data);
    finished ||= item.finish !== null;
    yield item;
  }
  if (!finished) throw new ApiError("network"); // the stream broke off
}

function itemOf(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError("server", { status: 200, text: data.slice(0, 200) });
  }
  if (chunk.error) throw new ApiError("server", { status: 200, text: textOf(chunk) });
  const choice = chunk.choices?.[0];
  return {
    reasoning: choice?.delta?.reasoning_content || null,
    content: choice?.delta?.content || null,
    finish: choice?.edge_finish_reason ?? choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
  };
}

/** The data of each server-sent event of a body. */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ApiError("network");
      });
      if (done) return;
      buffer += decoder.decode(value, { stream: true });
      const lines = buffer.split(/\r?\n/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
