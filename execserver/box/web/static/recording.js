// A recording of `execserver audit cast` (asciicast v3): played on a terminal of its own, wound, paused.
//
// What is in the file is of the command that was recorded: it is checked, and draws on that terminal only.
// Nothing that a terminal would answer goes anywhere, and addresses in it lead nowhere.

import { button, el, setText } from "./dom.js";
import { visible } from "./escapes.js";
import { shown } from "./dialogs.js";
import { onScheme, terminalTheme } from "./scheme.js";
import { bounded, Terminal } from "./xterm_styles.js";

const MOST_COLS = 500;
const MOST_ROWS = 300;
const LONGEST_PAUSE_S = 2; // of what is played; the time that is shown is that of the recording
const STEP_S = 5;
const KINDS = new Set(["o", "i", "m", "r", "x"]);

/** Read a recording; throws an Error that says what is wrong with it.  Of a cut text the last line is left out. */
export function parsed(text, { cut = false } = {}) {
  const lines = text.split("\n");
  if (cut) lines.pop();
  const header = read(lines.shift() ?? "", 1);
  if (header?.version !== 3) throw new Error("This is no recording of the kind asciicast v3.");
  const size = sized(header.term?.cols, header.term?.rows) ?? { cols: 80, rows: 24 };
  const events = [];
  let at = 0;
  lines.forEach((line, number) => {
    if (line === "" || line.startsWith("#")) return;
    const [interval, kind, data] = ofEvent(read(line, number + 2), number + 2);
    at += interval;
    if (!Number.isFinite(at)) throw new Error(`Line ${number + 2} of the recording is no event.`);
    if (KINDS.has(kind)) events.push({ at, kind, data });
  });
  const command = typeof header.command === "string" ? header.command : "";
  return { ...size, command, events, length: at };
}

function read(line, number) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Error(`Line ${number} of the recording is no JSON.`);
  }
}

function ofEvent(event, number) {
  const isOne = Array.isArray(event) && event.length === 3 && Number.isFinite(event[0]) && event[0] >= 0
    && typeof event[1] === "string" && typeof event[2] === "string";
  if (!isOne) throw new Error(`Line ${number} of the recording is no event.`);
  return event;
}

function sized(cols, rows) {
  const fits = Number.isInteger(cols) && Number.isInteger(rows) && cols > 0 && rows > 0;
  return fits ? { cols: Math.min(cols, MOST_COLS), rows: Math.min(rows, MOST_ROWS) } : null;
}

function clock(seconds) {
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

class Player {
  #recording;
  #screen;
  #next = 0; // of the events
  #now = 0; // seconds of the recording
  #timer = null;
  #begun = null; // when the pause before the next event began, in ms
  #drawing = false; // a place is drawn; xterm.js refuses what many of them together would write
  #waiting = null; // the place to draw behind that one
  #stop;
  #closed = false;

  constructor(recording) {
    this.#recording = recording;
    this.playButton = button("Play", () => this.toggle(), { class: "main", autofocus: true });
    this.place = el("input", {
      type: "range", min: "0", max: String(Math.max(recording.length, 0.001)), step: "any", value: "0",
      "aria-label": "Place in the recording", oninput: () => this.wind(Number(this.place.value)),
    });
    this.speed = el("select", { "aria-label": "Speed", onchange: () => this.#again() },
      ...[1, 2, 4, 8].map((each) => el("option", { value: String(each) }, `${each}×`)));
    this.state = el("span", { class: "terminal-state" });
    this.told = el("span", { role: "status" });
    this.holder = el("div", { class: "screen recorded" });
    this.bar = el("div", { class: "bar" }, this.playButton, this.place, this.state, this.speed, this.told);
  }

  /** Begin to play; the elements must be in the page. */
  start() {
    const { cols, rows } = this.#recording;
    this.#screen = bounded(new Terminal({
      cols, rows, fontSize: 14, cursorBlink: false, disableStdin: true, theme: terminalTheme(), scrollback: 1000,
      fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", minimumContrastRatio: 4.5,
      linkHandler: { activate: () => {} }, screenReaderMode: true,
    }));
    this.#screen.open(this.holder);
    this.#screen.attachCustomKeyEventHandler(() => false); // keys are the page's here, Tab above all
    this.#stop = onScheme(() => { this.#screen.options.theme = terminalTheme(); });
    this.#play();
  }

  close() {
    this.#halt();
    this.#closed = true;
    this.#stop();
    this.#screen.dispose();
  }

  toggle() {
    if (this.#waiting !== null) this.#waiting.plays = !this.#waiting.plays;
    else if (this.#timer !== null) this.#halt();
    else if (this.#next >= this.#recording.events.length) this.wind(0, true);
    else this.#play();
    this.#tell();
  }

  /** Show the screen as it was then; goes on if it was playing, or is to. */
  wind(to, plays = this.#plays) {
    const { events, length, cols, rows } = this.#recording;
    this.#halt();
    this.#now = Math.max(0, Math.min(to, length));
    if (this.#drawing) {
      this.#waiting = { to: this.#now, plays };
      this.#tell();
      return;
    }
    this.#drawing = true;
    this.#screen.write("\x1bc"); // not `reset`: that overtakes what is still to be drawn
    this.#resize({ cols, rows });
    setText(this.told, "");
    this.#next = 0;
    while (this.#next < events.length && events[this.#next].at <= this.#now) this.#show(events[this.#next++]);
    this.#screen.write("", () => this.#drawn());
    if (plays) this.#play();
    this.#tell();
  }

  #drawn() {
    const waiting = this.#waiting;
    this.#drawing = false;
    this.#waiting = null;
    if (waiting !== null && !this.#closed) this.wind(waiting.to, waiting.plays);
  }

  get #plays() {
    return this.#waiting !== null ? this.#waiting.plays : this.#timer !== null;
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("button, input, select")) {
      if (event.key !== "," && event.key !== ".") return;
    }
    if (event.key === " ") this.toggle();
    else if (event.key === "ArrowLeft" || event.key === ",") this.wind(this.#now - STEP_S);
    else if (event.key === "ArrowRight" || event.key === ".") this.wind(this.#now + STEP_S);
    else return;
    event.preventDefault();
  }

  #play() {
    const event = this.#recording.events[this.#next];
    this.#timer = null;
    if (event === undefined) {
      this.#now = this.#recording.length;
    } else {
      const pause = Math.min(event.at - this.#now, LONGEST_PAUSE_S) / Number(this.speed.value);
      this.#begun = performance.now();
      this.#timer = setTimeout(() => this.#due(), pause * 1000);
    }
    this.#tell();
  }

  /** Show all that is due at once: a flow of output is not one timer an event. */
  #due() {
    const { events } = this.#recording;
    const late = ((performance.now() - this.#begun) / 1000) * Number(this.speed.value);
    this.#now = Math.max(events[this.#next].at, Math.min(this.#now + late, events[this.#next].at + 0.1));
    while (this.#next < events.length && events[this.#next].at <= this.#now) this.#show(events[this.#next++]);
    this.#play();
  }

  #halt() {
    clearTimeout(this.#timer);
    this.#timer = null;
  }

  #again() {
    if (this.#timer === null) return;
    this.#halt();
    this.#play();
  }

  #show({ kind, data }) {
    if (kind === "o") this.#screen.write(data);
    else if (kind === "m") setText(this.told, visible(data));
    else if (kind === "x") setText(this.told, `ended with status ${visible(data)}`);
    else if (kind === "r") {
      const size = sized(...data.split("x").map(Number));
      if (size) this.#resize(size);
    }
  }

  #resize({ cols, rows }) {
    const screen = this.#screen;
    screen.write("", () => { if (!this.#closed) screen.resize(cols, rows); }); // behind what is still to be drawn
  }

  #tell() {
    setText(this.playButton, this.#plays ? "Pause" : "Play");
    setText(this.state, `${clock(this.#now)} of ${clock(this.#recording.length)}`);
    this.place.value = String(this.#now);
    this.place.setAttribute("aria-valuetext", this.state.textContent);
  }
}

/** Play a recording in a dialog, until that is closed. */
export async function playRecording(recording, title) {
  const player = new Player(recording);
  const command = recording.command ? el("p", {}, el("code", {}, visible(recording.command))) : null;
  const closed = shown(`Recording ${visible(title)}`, ...[command, player.bar, player.holder].filter(Boolean));
  player.holder.closest("dialog").addEventListener("keydown", (event) => player.key(event));
  player.start();
  await closed;
  player.close();
}

/** Whether this console has a terminal to play on. */
export const canPlay = Boolean(Terminal);
