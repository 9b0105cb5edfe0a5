// Puts the page together: the box and the tab that are looked at, the state line, the keys.
//
// The address's fragment is `#/BOX/TAB`, so that the browser's back and forward work.

import { Boxes } from "./boxes.js";
import { filled, showKeys } from "./dialogs.js";
import { button, el, named, setText } from "./dom.js";
import { visible } from "./escapes.js";
import { Files } from "./files.js";
import { Link } from "./link.js";
import { complain, tell } from "./notices.js";
import { Ports } from "./ports.js";
import { askStart, Processes } from "./processes.js";
import { Sandbox } from "./sandbox.js";
import { Tabs } from "./tabs.js";
import { Terminals } from "./terminals.js";

const TITLES = { processes: "Processes", terminals: "Terminals", files: "Files", ports: "Ports", sandbox: "Sandbox" };

class App {
  box = null; // of boxes.list
  tab = null;

  constructor() {
    this.link = new Link();
    this.boxes = new Boxes(document.getElementById("boxes"), this.link, (name) => this.go(name, this.tab), () => this.listed());
    this.terminals = new Terminals(this);
    this.views = {
      processes: new Processes(this), terminals: this.terminals, files: new Files(this),
      ports: new Ports(this), sandbox: new Sandbox(this),
    };
    this.tabs = new Tabs(document.getElementById("tabs"), (tab) => this.choose(tab));
    const place = document.getElementById("views");
    for (const [id, view] of Object.entries(this.views)) {
      view.element.id = `view-${id}`;
      place.append(view.element);
      const tab = this.tabs.add(id, view.element, TITLES[id]);
      tab.setAttribute("aria-keyshortcuts", String(this.tabs.ids.length));
    }
  }

  complain(error, doing) {
    complain(error, doing);
  }

  tell(text) {
    tell(text);
  }

  /** Wait for an answer; resolves to it, or to null after the failure was told. */
  async doing(what, answer) {
    try {
      return await answer;
    } catch (error) {
      complain(error, what);
      return null;
    }
  }

  /** Look at another tab of the box. */
  choose(tab) {
    if (this.box) this.go(this.box.name, tab);
  }

  /** Look at a tab of a box, by the address. */
  go(name, tab) {
    const hash = `#/${encodeURIComponent(name)}/${tab ?? "processes"}`;
    location.hash = hash;
    this.follow(); // now, not only at the event: a terminal that is opened must be seen to know its size
  }

  #followed = null;
  #asking = false;

  /** Show what the address says; the default box without one. */
  async follow() {
    if (this.boxes.all === null || this.#asking || location.hash === this.#followed) return;
    const [, name, tab] = location.hash.split("/");
    const wanted = name && decoded(name);
    const all = this.boxes.all;
    const box = all.find((each) => each.name === wanted) ?? all.find((each) => each.default) ?? all[0] ?? null;
    const changes = box?.name !== this.box?.name;
    if (changes && this.views.files.unsaved && !(await this.#mayLeave())) {
      location.hash = this.#followed;
      return;
    }
    this.#followed = location.hash;
    this.#show(box, tab in this.views ? tab : "processes", changes);
  }

  async #mayLeave() {
    this.#asking = true;
    const may = await this.views.files.editor.mayGo();
    this.#asking = false;
    return may;
  }

  /** The boxes have answered again. */
  listed() {
    const now = this.boxes.all.find((each) => each.name === this.box?.name);
    if (!now) return;
    this.box = now;
    this.tellBox();
  }

  /** Ask the boxes again, and for what is looked at. */
  async again() {
    await this.boxes.refresh();
    if (this.tab) this.views[this.tab].show();
  }

  #show(box, tab, changes) {
    if (changes && this.tab) this.views[this.tab].hide();
    this.box = box;
    this.boxes.draw(box?.name);
    document.getElementById("frame").dataset.empty = String(box === null);
    if (box === null) return;
    if (changes) for (const view of Object.values(this.views)) view.changed?.();
    if (!changes && this.tab && this.tab !== tab) this.views[this.tab].hide();
    this.tab = tab;
    this.tabs.select(tab);
    this.tellBox();
    document.title = `${visible(box.name)} · ${TITLES[tab]} · execserver console`;
    this.views[tab].show();
  }

  /** Say which box this is and whether it answers. */
  tellBox() {
    const state = { lost: "The connection is lost; it is being resumed.", ended: "The connection has ended.",
      unreachable: this.box.error ?? "It does not answer." }[this.box.state];
    document.getElementById("box-state").replaceChildren(
      el("h2", {}, named(this.box.name)), el("code", {}, named(this.box.url ?? "")),
      state ? el("p", { class: "warning", role: "alert" }, visible(state), " ", button("Try again", () => this.again())) : "");
  }

  /** Ask what to start, start it, and show it. */
  async start() {
    if (!this.box) return;
    const box = this.box.name;
    const params = await askStart(filled);
    if (!params) return;
    const started = await this.doing("Start", this.link.call("process.start", { box, ...params }));
    if (!started) return;
    const title = params.name || params.argv?.[2] || `shell on ${box}`;
    await this.terminals.open({ box, process_id: started.process_id, title: title.slice(0, 60), tty: params.tty });
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function keys(app) {
  const act = {
    "?": () => showKeys(), b: () => app.boxes.focus(), n: () => app.start(),
    r: () => (app.views[app.tab]?.refresh ?? (() => app.boxes.refresh())).call(app.views[app.tab]),
    "/": () => app.views[app.tab]?.filter?.focus(),
  };
  Object.keys(TITLES).forEach((tab, at) => {
    act[String(at + 1)] = () => { app.choose(tab); app.tabs.focus(tab); };
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, dialog, .screen") || !(event.key in act)) return;
    event.preventDefault();
    act[event.key]();
  });
}

function tellLink(app) {
  const line = document.getElementById("link-state");
  const say = (state, text) => {
    line.dataset.state = state;
    setText(line, text);
  };
  app.link.addEventListener("up", async () => {
    say("up", "Connected");
    const shown = app.tab;
    await app.boxes.refresh();
    await app.follow();
    if (shown) app.views[shown].show();
  });
  app.link.addEventListener("down", ({ detail }) => {
    const wait = detail.delay_ms >= 1000 ? `in ${Math.round(detail.delay_ms / 1000)} s` : "now";
    say("down", `Not connected: execserver web does not answer. Trying again ${wait}.`);
  });
  app.link.addEventListener("connection", ({ detail }) => {
    if (detail.box !== app.box?.name) return;
    app.box = app.boxes.all.find((each) => each.name === detail.box) ?? app.box;
    app.box.state = detail.state;
    app.tellBox();
  });
}

const app = new App();
keys(app);
tellLink(app);
document.getElementById("help").addEventListener("click", () => showKeys());
addEventListener("hashchange", () => app.follow());
addEventListener("beforeunload", (event) => {
  if (app.views.files.unsaved || app.views.files.uploads.busy) event.preventDefault();
});
app.link.open();
