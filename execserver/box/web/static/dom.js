// Elements.  Texts enter the page through here, as text and never as markup.

import { visible, visibleParts } from "./escapes.js";

/** Make an element: `on...` are listeners, the rest are attributes; children are elements or texts. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Make a button. */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** Show a name that somebody else chose: nothing in it is hidden, and it cannot turn the text around it. */
export function named(text) {
  const parts = visibleParts(text).map((part) =>
    part.escaped ? el("span", { class: "escape" }, part.text) : part.text,
  );
  return el("bdi", { title: visible(text) }, ...parts);
}

/** Change the text of an element only if it is another one, so that readers are not told again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make the note that stands where there is nothing to show. */
export function empty(title, ...explanation) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), el("p", {}, ...explanation));
}

/** Make a field with its label. */
export function field(label, input, note) {
  return el("label", { class: "field" }, el("span", {}, label), input, note ? el("small", {}, note) : null);
}

/** Move the focus among the children that match with the arrow keys, Home and End. */
export function rove(container, selector, { horizontal = false } = {}) {
  const [back, forth] = horizontal ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  container.addEventListener("keydown", (event) => {
    if (!event.target.matches(selector) || event.altKey || event.ctrlKey || event.metaKey) return;
    const all = [...container.querySelectorAll(selector)].filter((each) => each.offsetParent !== null);
    const steps = { [back]: -1, [forth]: 1, Home: -all.length, End: all.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const to = all.indexOf(event.target) + steps[event.key];
    all[Math.min(all.length - 1, Math.max(0, to))]?.focus();
  });
}
