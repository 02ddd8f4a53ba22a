// Conversations, each under a key of its own in localStorage, so that saving one does not write them all.
//
// session: {id, title, changed (ms), messages}
// message: {role, content} of a user; of the model besides: reasoning, finish, error, and times, see chat.js

const PREFIX = "edge-kit.session.";
const MOST_TITLE = 60; // characters

export function newSession() {
  // Not crypto.randomUUID, which a page from a plain http:// address does not have.
  const random = crypto.getRandomValues(new Uint32Array(4));
  return { id: [...random].map((n) => n.toString(36)).join("-"), title: "", changed: 0, messages: [] };
}

/** All sessions, the one changed last first. What cannot be read is left alone. */
export function loadSessions() {
  const found = [];
  try {
    for (let i = 0; i < localStorage.length; i++) {
      const name = localStorage.key(i);
      if (!name.startsWith(PREFIX)) continue;
      const session = parse(localStorage.getItem(name));
      if (session && name === PREFIX + session.id) found.push(session);
    }
  } catch {
    // The browser refuses storage: sessions live as long as the page.
  }
  return found.sort((a, b) => b.changed - a.changed);
}

function parse(text) {
  try {
    const session = JSON.parse(text);
    const isMessage = (m) => m && typeof m.content === "string" && ["user", "assistant"].includes(m.role);
    const good = typeof session.title === "string" && session.messages.every(isMessage);
    return good ? session : null;
  } catch {
    return null;
  }
}

/** Saves the session; false if the storage is full. A session without messages is not kept. */
export function saveSession(session) {
  if (!session.messages.length) return true;
  session.changed = Date.now();
  return store(session);
}

function store(session) {
  try {
    localStorage.setItem(PREFIX + session.id, JSON.stringify(session));
    return true;
  } catch (error) {
    return error.name !== "QuotaExceededError";
  }
}

export function renameSession(session, title) {
  session.title = title;
  return session.messages.length ? store(session) : true;
}

export function deleteSession(session) {
  try {
    localStorage.removeItem(PREFIX + session.id);
  } catch {
    // It was never stored.
  }
}

/** A title from the first question. */
export function titleOf(question) {
  const characters = [...question.trim().replace(/\s+/g, " ")];
  return characters.length > MOST_TITLE
    ? characters.slice(0, MOST_TITLE).join("") + "…"
    : characters.join("");
}
