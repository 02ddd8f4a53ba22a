// Wires the page together: which conversation is shown, and which answers are running.

import { health, modelName } from "./api.js";
import { Run } from "./chat.js";
import { ask } from "./dialog.js";
import { AnswerView, questionElement } from "./messages.js";
import { deleteSession, loadSessions, newSession, renameSession, saveSession, titleOf } from "./sessions.js";
import { readSetting, writeSetting } from "./settings.js";
import { drawSidebar, openSidebar } from "./sidebar.js";
import { fillTexts, language, setLanguage, t } from "./strings.js";

const CLOCK_MS = 100;
const HEALTH_MS = { ready: 15000, other: 2000 };

const at = (id) => document.getElementById(id);
const [question, scroll, status] = ["question", "scroll", "status"].map(at);

let sessions = loadSessions();
let current = newSession();
let views = new Map(); // message of the model -> AnswerView, of the session that is shown
const runs = new Map(); // session id -> Run
let model = null;
let serverState = ""; // see health()
let storageFull = false;

// ---- What is shown

function showSession(session) {
  current = session;
  views = new Map();
  at("messages").replaceChildren(...session.messages.map(elementOf));
  at("welcome").hidden = session.messages.length > 0;
  drawFrame();
  scroll.scrollTop = scroll.scrollHeight;
}

function elementOf(message) {
  if (message.role === "user") return questionElement(message);
  const isLast = message === current.messages.at(-1);
  const view = new AnswerView(message, model ?? "", isLast ? () => retry(message) : null);
  views.set(message, view);
  view.update(runOf(message));
  return view.element;
}

function runOf(message) {
  const run = runs.get(current.id);
  return run?.message === message ? run : null;
}

/** All but the messages: list, title, buttons. */
function drawFrame() {
  drawSidebar(sessions, current, { open, rename, remove });
  const running = runs.has(current.id);
  at("title").textContent = current.title || t("newConversation");
  at("send").hidden = running;
  at("stop").hidden = !running;
}

/** Draws one message, and stays at the end of the page if the reader is there. */
function drawAnswer(run) {
  const view = views.get(run.message);
  if (!view) return; // another conversation is shown
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  view.update(runOf(run.message));
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function drawStatus() {
  status.dataset.state = serverState;
  if (storageFull) status.textContent = t("storageFull");
  else if (serverState === "ready") status.textContent = model ?? t("ready");
  else status.textContent = serverState && t(serverState);
}

// ---- Asking

function send() {
  const text = question.value.trim();
  if (!text || runs.has(current.id)) return;
  question.value = "";
  fitQuestion();
  if (!current.messages.length) {
    current.title ||= titleOf(text);
    sessions = [current, ...sessions];
  }
  current.messages.push({ role: "user", content: text });
  answer(current);
}

function retry(message) {
  if (runs.has(current.id) || current.messages.at(-1) !== message) return;
  current.messages.pop();
  answer(current);
}

async function answer(session) {
  const run = new Run(session);
  runs.set(session.id, run);
  save(session);
  showSession(session);
  let drawing = false;
  const onChange = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      drawAnswer(run);
    });
  };
  const clock = setInterval(() => drawAnswer(run), CLOCK_MS);
  model ??= await modelName().catch(() => null); // it is only a name: the answer says what is wrong
  await run.stream({ model, maxTokens: Number(at("max-tokens").value) || null }, onChange);
  clearInterval(clock);
  runs.delete(session.id);
  if (sessions.includes(session)) save(session);
  drawAnswer(run);
  drawFrame();
  checkHealth();
  if (run.message.error?.kind === "key") askKey(run.message);
}

async function askKey(message) {
  const key = await ask(t("keyQuestion"), { type: "password" });
  if (!key) return;
  writeSetting("key", key);
  retry(message);
}

function save(session) {
  storageFull = !saveSession(session);
  drawStatus();
}

// ---- Conversations

function open(session) {
  openSidebar(false);
  showSession(session);
  focusQuestion();
}

async function rename(session) {
  const title = await ask(t("renameQuestion"), { value: session.title });
  if (!title?.trim()) return;
  renameSession(session, title.trim());
  drawFrame();
}

async function remove(session) {
  if ((await ask(t("deleteQuestion", { title: session.title }), { type: null })) === null) return;
  runs.get(session.id)?.stop();
  deleteSession(session);
  sessions = sessions.filter((other) => other !== session);
  if (session === current) showSession(newSession());
  else drawFrame();
}

// ---- The frame around it

async function checkHealth() {
  clearTimeout(checkHealth.timer);
  serverState = await health();
  if (serverState === "ready") model ??= await modelName().catch(() => null);
  drawStatus();
  checkHealth.timer = setTimeout(checkHealth, HEALTH_MS[serverState] ?? HEALTH_MS.other);
}

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`; // 2: its border
}

/** Where it does not open a keyboard over half of the screen. */
function focusQuestion() {
  if (matchMedia("(hover: hover)").matches) question.focus();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").value = name;
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
question.addEventListener("input", fitQuestion);
question.addEventListener("keydown", (event) => {
  // An Enter that ends the typing of a Chinese word belongs to the input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
at("stop").addEventListener("click", () => runs.get(current.id)?.stop());
at("new").addEventListener("click", () => open(newSession()));
at("theme").addEventListener("change", (event) => {
  writeSetting("theme", event.target.value);
  setTheme(event.target.value);
});
at("language").addEventListener("change", (event) => {
  setLanguage(event.target.value);
  drawStatus();
  showSession(current);
});
at("max-tokens").addEventListener("change", (event) => writeSetting("max-tokens", event.target.value));
addEventListener("pagehide", () => {
  for (const { session } of runs.values()) saveSession(session);
});

// A page that was closed amid an answer left it without an end.
for (const { messages } of sessions) {
  for (const message of messages) {
    if (message.role === "assistant" && !message.finish) message.error ??= { kind: "network" };
  }
}
setTheme(readSetting("theme") ?? "auto");
at("language").value = language();
at("max-tokens").value = readSetting("max-tokens") ?? "";
fillTexts();
showSession(sessions[0] ?? current);
focusQuestion();
checkHealth();
