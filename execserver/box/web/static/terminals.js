// The terminals that are open here, of all boxes, each in a tab.

import { button, el, empty, named } from "./dom.js";
import { visible } from "./escapes.js";
import { Tabs } from "./tabs.js";
import { TerminalView } from "./terminal.js";
import { Terminal } from "./xterm_styles.js";

const MOST_OPEN = 16;
const MOST_EARLY = 1000;

export class Terminals {
  #app;
  #views = new Map();
  #chosen = null;
  #tabs;
  #next = 1;
  #connecting = 0;
  #early = []; // what came before the answer that names its channel

  constructor(app) {
    this.#app = app;
    this.list = el("div", { class: "terminal-tabs", role: "tablist", "aria-label": "Open terminals" });
    this.#tabs = new Tabs(this.list, (key) => this.#select(key, true));
    this.panels = el("div", { class: "terminal-panels" });
    this.blank = el("div", {});
    this.element = el("div", { class: "view terminals" },
      el("div", { class: "bar" }, this.list, el("span", { class: "gap" }),
        button("New shell", () => this.shell(), { class: "main" }),
        button("Start a command…", () => app.start())),
      this.blank, this.panels);
    this.#listen(app.link);
    this.#drawBlank();
  }

  show() {
    this.#current()?.fit();
  }

  hide() {}

  /** Open a login shell on the box. */
  async shell() {
    if (!Terminal) return;
    const box = this.#app.box.name;
    const started = await this.#app.doing("New shell", this.#app.link.call("process.start", { box, tty: true }));
    if (started) this.open({ box, process_id: started.process_id, title: `shell on ${box}`, tty: true });
  }

  /** Show a process; one that is open already is brought to the front. */
  async open(process) {
    this.#app.choose("terminals");
    let key = this.#keyOf(process);
    if (key === undefined) {
      if (!Terminal) return;
      if (this.#views.size >= MOST_OPEN) {
        this.#app.complain(new Error(`${MOST_OPEN} terminals are open; close one of them first.`));
        return;
      }
      key = `terminal-${this.#next++}`;
      this.#add(key, { ...process, key });
      this.#select(key, false);
      this.#views.get(key).view.show(() => this.#tabs.focus(key));
      this.#drawBlank();
      await this.#connect(this.#views.get(key).view);
    }
    this.#select(key, true);
  }

  #keyOf({ box, process_id }) {
    const same = ({ process }) => process.box === box && process.process_id === process_id;
    return [...this.#views.keys()].find((key) => same(this.#views.get(key).view));
  }

  #add(key, process) {
    const title = el("span", {}, named(process.title));
    const mark = el("span", { class: "mark", "aria-hidden": "true" });
    const view = new TerminalView(this.#app.link, process, () => {
      mark.dataset.state = view.state.dataset.state;
      tab.setAttribute("aria-label", `${visible(process.title)}: ${view.state.textContent}`);
    }, () => this.#close(key));
    this.panels.append(view.element);
    const tab = this.#tabs.add(key, view.element, mark, title);
    tab.addEventListener("keydown", (event) => {
      if (event.key === "Delete") this.#close(key);
    });
    this.#views.set(key, { view });
  }

  #select(key, focus) {
    if (!this.#views.has(key)) return;
    this.#chosen = key;
    this.#tabs.select(key);
    this.#current().fit();
    if (focus) this.#current().focus();
  }

  #close(key) {
    this.#views.get(key).view.dispose();
    this.#views.delete(key);
    this.#tabs.remove(key);
    const next = this.#tabs.ids.pop();
    if (this.#chosen === key) this.#chosen = null;
    if (next) {
      this.#select(next, false);
      this.#tabs.focus(next);
    }
    this.#drawBlank();
  }

  #current() {
    return this.#views.get(this.#chosen)?.view;
  }

  #drawBlank() {
    this.blank.hidden = this.#views.size > 0;
    if (this.#views.size > 0) return;
    this.blank.replaceChildren(!Terminal ? noTerminals() : empty(
      "No terminal is open.",
      "A new shell is a login shell of the box. The Processes tab opens what runs there already: you read along, or take the keyboard.",
    ));
  }

  #listen(link) {
    link.addEventListener("bytes", ({ detail }) => this.#bytes(detail));
    const route = (name, act) => link.addEventListener(name, ({ detail }) => this.#of(detail.channel, (view) => act(view, detail)));
    route("terminal.gap", (view, { lost_bytes }) => view.gap(lost_bytes));
    route("terminal.exited", (view, { exit_code }) => view.ended(exit_code));
    route("terminal.writer", (view, { writer }) => view.setWriter(writer));
    route("terminal.dropped", (view, { bytes }) => this.#app.complain(new Error(`${bytes} bytes of input were not taken: the command does not read.`)));
    link.addEventListener("down", () => this.#all((view) => view.lost("not connected")));
    link.addEventListener("up", () => this.#all((view) => { if (!view.exited) this.#connect(view); }));
    link.addEventListener("connection", ({ detail }) => this.#all((view) => {
      if (view.process.box !== detail.box) return;
      if (detail.state === "ended") view.lost("the connection to the box has ended");
      else if (detail.state === "connected" && !view.isOpen && !view.exited) this.#connect(view);
    }));
  }

  #bytes({ channel, data }) {
    this.#of(channel, (view) => view.draw(data));
  }

  /** Do something with the terminal of a channel; what comes before the answer that names it waits for that. */
  #of(channel, act) {
    const found = [...this.#views.values()].find(({ view }) => view.has(channel));
    if (found) act(found.view);
    else if (this.#connecting > 0 && this.#early.length < MOST_EARLY) this.#early.push({ channel, act });
  }

  async #connect(view) {
    this.#connecting += 1;
    await view.connect();
    this.#connecting -= 1;
    const early = this.#early;
    this.#early = [];
    for (const { channel, act } of early) this.#of(channel, act);
  }

  #all(act) {
    for (const { view } of this.#views.values()) act(view);
  }
}

function noTerminals() {
  return empty(
    "This console has no terminals.",
    "It was built without xterm.js. `execserver shell` and `execserver attach` work in any terminal; everything else here works as well.",
  );
}
