// One terminal: the screen of a process, its keyboard if this page writes, and what to do with it.
//
// What is read again after a lost connection is drawn on an emptied screen.  Queries in old output (which
// terminal are you?) get no answer: the command that asked is long past it, and the answer would be typed.

import { button, el, setText } from "./dom.js";
import { visible } from "./escapes.js";
import { complain } from "./notices.js";
import { confirmed } from "./dialogs.js";
import { onScheme, terminalTheme } from "./scheme.js";
import { bounded, Terminal } from "./xterm_styles.js";

const SCROLLBACK_LINES = 5000;
const MOST_UNDRAWN_BYTES = 8 * 1024 * 1024;
const PAST_MS = 300; // a pause in the output of this length ends what is past
const ANSWER = /^\x1b(\[[?>]?[\d;]*[cnRy$t]|\][0-9]+;|P)/;
const encoder = new TextEncoder();

export class TerminalView {
  #link;
  #screen = null;
  #channel = null;
  #writer = false;
  #exited = false;
  #undrawn = 0;
  #pastTimer = null;
  #stop = [];

  /** `onstate` is called when the name in the tab has to be written anew. */
  constructor(link, process, onstate, onclose) {
    this.#link = link;
    this.process = process;
    this.onstate = onstate;
    this.state = el("span", { class: "terminal-state", role: "status" });
    this.takeButton = button("Take the keyboard", () => this.#take(), { class: "main", hidden: true });
    this.holder = el("div", { class: "screen" });
    const readable = el("input", { type: "checkbox", onchange: () => this.#screenReader(readable.checked) });
    this.element = el(
      "section", { class: "terminal-view", id: process.key },
      el("div", { class: "bar" }, this.state, this.takeButton,
        el("span", { class: "gap" }),
        el("span", { class: "leave-note" }, el("kbd", {}, "Ctrl+Shift+↑"), " leaves the terminal"),
        el("label", { class: "check", title: "Writes the screen so that screen readers can read it" },
          readable, "Screen reader"),
        button("Close", onclose, { title: "Closes this view; the command goes on" })),
      this.holder,
    );
  }

  get exited() {
    return this.#exited;
  }

  get isOpen() {
    return this.#channel !== null;
  }

  /** Draw into the page, of which the element must be a part; `onleave` is for the key that leaves it. */
  show(onleave) {
    this.#screen = bounded(new Terminal({
      scrollback: SCROLLBACK_LINES, fontSize: 14, cursorBlink: false, theme: terminalTheme(),
      fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", minimumContrastRatio: 4.5,
      linkHandler: { activate: (_, url) => openLink(url) }, convertEol: this.process.tty === false,
    }));
    this.#screen.open(this.holder);
    this.#screen.onData((text) => this.#typed(text));
    this.#screen.onBinary((text) => this.#send(Uint8Array.from(text, (each) => each.charCodeAt(0))));
    this.#screen.onResize(({ cols, rows }) => this.#resized(cols, rows));
    this.#screen.attachCustomKeyEventHandler((event) => this.#keyed(event, onleave));
    const observer = new ResizeObserver(() => this.fit());
    observer.observe(this.holder);
    this.#stop.push(() => observer.disconnect(), onScheme(() => { this.#screen.options.theme = terminalTheme(); }));
    this.fit();
  }

  /** Follow the process, at the beginning and after each lost connection. */
  async connect() {
    this.#screen.reset();
    const { box, process_id } = this.process;
    try {
      const opened = await this.#link.call("terminal.open", {
        box, process_id, cols: this.#screen.cols, rows: this.#screen.rows,
      });
      this.#channel = opened.channel;
      this.#exited = false;
      this.#screen.options.convertEol = opened.tty === false;
      this.#screen.options.disableStdin = false;
      this.#isPast();
      this.setWriter(opened.writer);
    } catch (error) {
      this.#channel = null;
      this.#say(error.message);
      complain(error, "Terminal");
    }
  }

  /** Whether events of this channel are for this terminal. */
  has(channel) {
    return channel === this.#channel;
  }

  draw(data) {
    if (this.#pastTimer !== null) this.#isPast();
    if (this.#undrawn > MOST_UNDRAWN_BYTES) return this.gap(data.length);
    this.#undrawn += data.length;
    this.#screen.write(data, () => { this.#undrawn -= data.length; });
    return undefined;
  }

  gap(lost) {
    const text = lost === null ? "some output is missing here" : `${lost} bytes of output are missing here`;
    this.#screen.write(`\r\n\x1b[0;7m ${text} \x1b[0m\r\n`);
  }

  setWriter(writer) {
    this.#writer = writer;
    this.#tellState();
    if (writer) this.#resized(this.#screen.cols, this.#screen.rows);
  }

  ended(code) {
    this.#exited = true;
    this.#channel = null;
    this.#screen.options.disableStdin = true;
    this.exitCode = code;
    this.#tellState();
  }

  /** The way to the process is gone; nothing can be typed until `connect`. */
  lost(text) {
    this.#channel = null;
    if (!this.#exited) this.#say(text);
  }

  focus() {
    this.#screen?.focus();
  }

  /** Give the screen as many lines and columns as there is room for. */
  fit() {
    const drawn = this.holder.querySelector(".xterm-screen");
    if (!drawn || this.holder.offsetParent === null) return;
    const width = drawn.offsetWidth / this.#screen.cols;
    const height = drawn.offsetHeight / this.#screen.rows;
    if (!width || !height) return;
    const cols = Math.max(20, Math.min(500, Math.floor((this.holder.clientWidth - 26) / width)));
    const rows = Math.max(4, Math.min(300, Math.floor((this.holder.clientHeight - 12) / height)));
    if (cols !== this.#screen.cols || rows !== this.#screen.rows) this.#screen.resize(cols, rows);
  }

  dispose() {
    if (this.#channel !== null) this.#link.call("terminal.close", { channel: this.#channel }).catch(() => {});
    this.#stop.forEach((stop) => stop());
    clearTimeout(this.#pastTimer);
    this.#screen?.dispose();
  }

  #typed(text) {
    if (ANSWER.test(text)) {
      if (this.#pastTimer !== null || !this.#writer) return;
    } else {
      this.#isNow(); // somebody types: what comes from here on may be the answer to that
    }
    if (!this.#writer && this.#channel !== null) {
      this.element.classList.add("refused");
      setTimeout(() => this.element.classList.remove("refused"), 600);
    }
    this.#send(encoder.encode(text));
  }

  #send(data) {
    if (this.#channel === null || !this.#writer) return;
    if (!this.#link.sendBytes(this.#channel, data)) this.#say("not sent: the connection is too slow");
  }

  #keyed(event, onleave) {
    if (event.ctrlKey && event.shiftKey && event.key === "ArrowUp") {
      if (event.type === "keydown") onleave();
      event.preventDefault();
      return false;
    }
    const copies = event.ctrlKey && !event.shiftKey && !event.altKey && event.key === "c";
    if (!copies || !this.#screen.hasSelection()) return true;
    setTimeout(() => this.#screen?.clearSelection());
    return false;
  }

  #resized(cols, rows) {
    if (this.#channel === null) return;
    this.#link.call("terminal.resize", { channel: this.#channel, cols, rows }).catch(() => {});
  }

  async #take() {
    try {
      await this.#link.call("terminal.take", { channel: this.#channel });
      this.focus();
    } catch (error) {
      complain(error, "Take the keyboard");
    }
  }

  #isPast() {
    clearTimeout(this.#pastTimer);
    this.#pastTimer = setTimeout(() => this.#isNow(), PAST_MS);
  }

  #isNow() {
    clearTimeout(this.#pastTimer);
    this.#pastTimer = null;
  }

  #tellState() {
    this.takeButton.hidden = this.#writer || this.#exited;
    if (this.#exited) this.#say(this.exitCode === null ? "ended" : `ended with status ${this.exitCode}`);
    else this.#say(this.#writer ? "you type" : "you read along");
  }

  #say(text) {
    setText(this.state, text);
    this.state.dataset.state = this.#exited ? "ended" : this.#channel === null ? "lost" : this.#writer ? "writer" : "reader";
    this.onstate();
  }

  #screenReader(on) {
    this.#screen.options.screenReaderMode = on;
  }
}

async function openLink(url) {
  if (!/^https?:\/\//i.test(url)) return;
  const text = `The command's output leads to ${visible(url)}.`;
  if (await confirmed("Open this address?", text, "Open")) window.open(url, "_blank", "noopener,noreferrer");
}
