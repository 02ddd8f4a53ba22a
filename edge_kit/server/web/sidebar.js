// The list of conversations; on a phone a drawer over the page.

import { t } from "./strings.js";

const list = document.getElementById("sessions");
const menu = document.getElementById("menu");
const backdrop = document.getElementById("backdrop");

/** Opens or closes the drawer; on a wide screen the list is always there. */
export function openSidebar(open) {
  document.body.classList.toggle("sidebar-open", open);
  backdrop.hidden = !open;
  menu.setAttribute("aria-expanded", String(open));
}

menu.addEventListener("click", () => openSidebar(!document.body.classList.contains("sidebar-open")));
backdrop.addEventListener("click", () => openSidebar(false));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") openSidebar(false);
});

function button(text, className, label, onClick) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = className;
  element.textContent = text;
  element.title = label;
  element.setAttribute("aria-label", label);
  element.addEventListener("click", onClick);
  return element;
}

/** Draws the list. actions: {open, rename, remove}, each called with a session. */
export function drawSidebar(sessions, current, actions) {
  const items = sessions.map((session) => {
    const item = document.createElement("li");
    const open = button(session.title, "open", session.title, () => actions.open(session));
    if (session === current) open.setAttribute("aria-current", "true");
    const name = (what) => `${t(what)}: ${session.title}`;
    const rename = button("✎", "icon rename", name("rename"), () => actions.rename(session));
    const remove = button("✕", "icon delete", name("delete"), () => actions.remove(session));
    item.append(open, rename, remove);
    return item;
  });
  list.replaceChildren(...items);
}
