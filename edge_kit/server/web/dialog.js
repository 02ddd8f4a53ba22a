// One dialog for all questions to the user.

const dialog = document.getElementById("dialog");
const form = document.getElementById("dialog-form");
const input = document.getElementById("dialog-input");

/** Resolves to what was typed, or null if cancelled. type: of the input; null asks for a yes alone. */
export function ask(text, { value = "", type = "text" } = {}) {
  document.getElementById("dialog-text").textContent = text;
  input.hidden = type === null;
  input.type = type ?? "text";
  input.value = value;
  dialog.showModal();
  (type === null ? document.getElementById("dialog-ok") : input).focus();
  input.select();
  return new Promise((resolve) => {
    let result = null;
    form.onsubmit = (event) => {
      event.preventDefault();
      result = input.value;
      dialog.close();
    };
    document.getElementById("dialog-cancel").onclick = () => dialog.close();
    dialog.onclose = () => {
      input.value = ""; // a key stays in no input
      resolve(result);
    };
  });
}
