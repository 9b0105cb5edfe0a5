// Questions to the person: confirm, choose, enter.  Modal; Escape is the harmless answer.

import { button, el, field } from "./dom.js";

const KEYS = [
  ["?", "these keys"],
  ["1 … 5", "processes, terminals, files, ports, sandbox"],
  ["b", "the boxes"],
  ["n", "start a command or a shell"],
  ["/", "filter what is listed"],
  ["r", "read it again"],
  ["↑ ↓ Home End", "move in a list; ← → among tabs"],
  ["Backspace", "files: the folder above"],
  ["F2, Delete", "files: rename, delete"],
  ["Ctrl+S", "editor: save"],
  ["Space , .", "recording: play or pause, 5 s back, 5 s on"],
  ["Ctrl+Shift+↑", "terminal: leave it (all other keys are the command's)"],
  ["Ctrl+C", "terminal: copy what is selected, else the command's"],
];

/** Show a dialog with a form; resolves to the value of the button that closed it, null for Escape. */
function ask(title, content, buttons) {
  const dialog = el("dialog", { "aria-label": title });
  const before = document.activeElement;
  const form = el("form", { method: "dialog" }, el("h2", {}, title), ...content);
  form.append(el("div", { class: "buttons" }, ...buttons));
  dialog.append(form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus();
      resolve(dialog.returnValue || null);
    });
    dialog.showModal();
  });
}

function closing(text, value, attributes = {}) {
  return el("button", { type: "submit", value, ...attributes }, text);
}

function cancelling() {
  return button("Cancel", (event) => event.target.closest("dialog").close(""));
}

/** Ask before something is destroyed; resolves to whether it is to be done. */
export async function confirmed(title, text, action) {
  const answer = await ask(title, [el("p", {}, text)], [
    cancelling(),
    closing(action, "yes", { class: "danger" }),
  ]);
  return answer === "yes";
}

/** Let the person choose; `choices` are [value, text]; resolves to a value or null. */
export function chosen(title, text, choices) {
  const buttons = choices.map(([value, label]) => closing(label, value));
  return ask(title, [el("p", {}, text)], [cancelling(), ...buttons]);
}

/** Ask for one line; resolves to it, or to null. */
export async function entered(title, label, value, action) {
  const input = el("input", { type: "text", autocomplete: "off", spellcheck: "false", required: true });
  input.value = value;
  input.autofocus = true;
  const asked = ask(title, [field(label, input)], [cancelling(), closing(action, "yes", { class: "main" })]);
  input.select();
  return (await asked) === "yes" ? input.value : null;
}

/** Ask with fields of the caller's; resolves to whether they are to be used. */
export async function filled(title, fields, action) {
  return (await ask(title, fields, [cancelling(), closing(action, "yes", { class: "main" })])) === "yes";
}

/** Show something until it is closed. */
export function shown(title, ...content) {
  return ask(title, content, [closing("Close", "closed", { autofocus: true })]);
}

/** Show what the keys do. */
export function showKeys() {
  const rows = KEYS.flatMap(([keys, text]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, text)]);
  return shown("Keys", el("dl", { class: "keys" }, ...rows));
}
