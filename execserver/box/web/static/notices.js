// Short messages at the edge of the page: what has been done, and what failed and how to mend it.

import { button, el } from "./dom.js";
import { visible } from "./escapes.js";

const MOST_SHOWN = 4;
const SHOWN_MS = 6000;

function show(kind, text, hint) {
  const area = document.getElementById("notices");
  const parts = [el("p", {}, visible(text))];
  if (hint) parts.push(el("p", { class: "hint" }, visible(hint)));
  const notice = el("div", { class: `notice ${kind}` }, el("div", {}, ...parts));
  const close = button("×", () => notice.remove(), { "aria-label": "Dismiss", class: "quiet" });
  notice.append(close);
  area.append(notice);
  while (area.children.length > MOST_SHOWN) area.firstElementChild.remove();
  return notice;
}

/** Say that something has been done; the message goes by itself. */
export function tell(text) {
  const notice = show("done", text);
  setTimeout(() => notice.remove(), SHOWN_MS);
}

/** Say that something failed, with its hint; the message stays until it is dismissed. */
export function complain(error, doing = null) {
  show("failed", doing ? `${doing}: ${error.message}` : error.message, error.hint);
}

/** Make the panel that stands in the place of something that failed. */
export function failure(error, again) {
  return el(
    "div",
    { class: "empty failed", role: "alert" },
    el("p", { class: "empty-title" }, visible(error.message)),
    error.hint ? el("p", {}, visible(error.hint)) : null,
    again ? button("Try again", again) : null,
  );
}
