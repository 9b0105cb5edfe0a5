// What a process has printed, from the box's log: the end first, earlier parts on demand.

import { button, el, setText } from "./dom.js";
import { visible } from "./escapes.js";
import { shown } from "./dialogs.js";

const MOST_SHOWN = 4_000_000; // characters
const CONTROL = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])/g;

/** Return output as plain text: without what a terminal would obey, other control characters visible. */
export function plain(text) {
  return text.replace(CONTROL, "").replace(/\r+\n/g, "\n").split("\n").map((line) => line.split("\t").map(visible).join("\t")).join("\n");
}

function decoded(pieces) {
  const parts = [];
  const decoders = new Map();
  for (const { stream, data } of pieces) {
    const raw = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
    if (!decoders.has(stream)) decoders.set(stream, new TextDecoder());
    const text = decoders.get(stream).decode(raw, { stream: true });
    const last = parts.at(-1);
    if (last?.stream === stream) last.text += text;
    else parts.push({ stream, text });
  }
  return parts.map(({ stream, text }) => el("span", { class: stream === "stderr" ? "stderr" : null }, plain(text)));
}

/** Show the log of a process in a dialog. */
export async function showLog(link, { box, process_id, title }) {
  const text = el("pre", { class: "log", tabindex: "0", "aria-label": "Output" });
  const state = el("p", { role: "status" });
  const earlier = button("Earlier output", () => more(), { hidden: true });
  let before = null;
  let characters = 0;

  async function more() {
    earlier.disabled = true;
    setText(state, "Reading…");
    try {
      const page = await link.call("log", { box, process_id, ...(before === null ? {} : { before }) });
      const parts = decoded(page.pieces);
      const height = text.scrollHeight;
      text.prepend(...parts);
      characters += parts.reduce((sum, part) => sum + part.textContent.length, 0);
      text.scrollTop += text.scrollHeight - height;
      before = page.before;
      earlier.hidden = before === null || characters > MOST_SHOWN;
      setText(state, characters === 0 ? "It has printed nothing." : tellEnd());
    } catch (error) {
      setText(state, [error.message, error.hint].filter(Boolean).join(" "));
    }
    earlier.disabled = false;
  }

  function tellEnd() {
    if (before === null) return "This is all that the box has.";
    return characters > MOST_SHOWN ? "The rest is too much for a page: `execserver logs` has it." : "";
  }

  const closed = shown(`Output of ${visible(title)}`, el("div", { class: "bar" }, earlier, state), text);
  await more();
  text.scrollTop = text.scrollHeight;
  return closed;
}
