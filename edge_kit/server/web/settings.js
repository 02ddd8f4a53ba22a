// Settings outlive the tab; the API key does not. A browser that refuses storage loses both on reload.

const PREFIX = "edge-kit.";
const kept = new Map();

function storageOf(name) {
  return name === "key" ? sessionStorage : localStorage;
}

/** The setting as text, or null. */
export function readSetting(name) {
  if (kept.has(name)) return kept.get(name);
  try {
    return storageOf(name).getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function writeSetting(name, value) {
  kept.set(name, value);
  try {
    storageOf(name).setItem(PREFIX + name, value);
  } catch {
    // Kept for this page alone.
  }
}
