// The processes of a box, by session, with their processor time and memory over the last minutes.

import { age, bytes, moment, percent } from "./amounts.js";
import { button, el, empty, field, named, setText } from "./dom.js";
import { commandLine, visible } from "./escapes.js";
import { History, Sparkline } from "./sparkline.js";
import { confirmed, chosen } from "./dialogs.js";
import { failure } from "./notices.js";
import { showLog } from "./log.js";

const LIST_EVERY_MS = 5000;
const MOST_ROWS = 500;
const WHOLE = "\0box";
const SIGNALS = [["INT", "INT (as ^C)"], ["HUP", "HUP"], ["TERM", "TERM"], ["KILL", "KILL (no way out)"]];

export class Processes {
  #app;
  #history = new History();
  #rows = new Map();
  #groups = new Map();
  #timer = null;
  #asking = null; // the name of the box that is asked
  #list = [];

  constructor(app) {
    this.#app = app;
    this.filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter processes", oninput: () => this.#draw() });
    this.ended = el("input", { type: "checkbox", checked: true, onchange: () => this.#draw() });
    this.total = { cpu: new Sparkline("cpu", 100), memory: new Sparkline("memory", 1) };
    this.figures = { cpu: el("b", {}, "–"), memory: el("b", {}, "–"), count: el("b", {}, "–") };
    const figure = (label, value, line) => el("div", { class: "figure" }, el("span", {}, label), value, line ?? "");
    this.totals = el("div", { class: "figures" }, figure("Running", this.figures.count),
      figure("Processor time", this.figures.cpu, this.total.cpu.element),
      figure("Memory", this.figures.memory, this.total.memory.element));
    this.body = el("div", { class: "processes" });
    this.element = el("div", { class: "view" },
      el("div", { class: "bar" }, this.filter, el("label", { class: "check" }, this.ended, "Ended, too"),
        el("span", { class: "gap" }), button("Start a command…", () => app.start(), { class: "main" })),
      this.totals, this.body);
    app.link.addEventListener("usage", ({ detail }) => this.#usage(detail));
  }

  show() {
    this.#follow(true);
    this.refresh();
    this.#timer ??= setInterval(() => this.refresh(), LIST_EVERY_MS);
  }

  hide() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#follow(false);
  }

  /** Another box is looked at. */
  changed() {
    this.#list = [];
    this.#rows.clear();
    this.#groups.clear();
    this.#history.clear();
    for (const figure of Object.values(this.figures)) setText(figure, "–");
    this.total.cpu.draw([]);
    this.total.memory.draw([]);
    this.body.replaceChildren(el("p", { class: "waiting" }, "Reading the processes…"));
  }

  async refresh() {
    const box = this.#app.box;
    if (!box || this.#asking === box.name || !this.#app.link.up) return;
    this.#asking = box.name;
    try {
      const list = await this.#app.link.call("processes.list", { box: box.name });
      if (box.name === this.#app.box?.name) {
        this.#list = list;
        this.#history.keep([WHOLE, ...list.map((each) => each.process_id)]);
        this.#draw();
      }
    } catch (error) {
      if (box.name === this.#app.box?.name) this.#failed(error);
    } finally {
      if (this.#asking === box.name) this.#asking = null;
    }
  }

  #failed(error) {
    const shown = this.body.querySelector(".failed .empty-title")?.textContent;
    if (shown === visible(error.message)) return; // is not told again every five seconds
    this.#rows.clear();
    this.#groups.clear();
    this.body.replaceChildren(failure(error, () => this.refresh()));
  }

  #follow(on) {
    const box = this.#app.box;
    if (box && this.#app.link.up) this.#app.link.call("usage.follow", { box: box.name, on }).catch(() => {});
  }

  #usage({ box, processes }) {
    if (box !== this.#app.box?.name) return;
    let cpu = 0;
    let memory = 0;
    for (const each of processes) {
      this.#history.add(each.process_id, each.cpu_percent, each.memory_bytes);
      cpu += each.cpu_percent ?? 0;
      memory += each.memory_bytes ?? 0;
      this.#rows.get(each.process_id)?.use(each, this.#history.get(each.process_id));
    }
    this.#history.add(WHOLE, cpu, memory);
    setText(this.figures.cpu, percent(cpu));
    setText(this.figures.memory, bytes(memory));
    this.total.cpu.draw(this.#history.get(WHOLE).cpu);
    this.total.memory.draw(this.#history.get(WHOLE).memory);
    const known = new Set(this.#list.map((each) => each.process_id));
    if (processes.some((each) => !known.has(each.process_id))) this.refresh();
  }

  #draw() {
    const running = this.#list.filter((each) => each.state === "running");
    setText(this.figures.count, `${running.length}`);
    const wanted = this.filter.value.toLowerCase();
    const text = (each) => `${each.name ?? ""} ${each.argv.join(" ")} ${each.session ?? ""}`.toLowerCase();
    const all = (this.ended.checked ? this.#list : running).filter((each) => text(each).includes(wanted));
    const shown = all.slice(0, MOST_ROWS);
    if (shown.length === 0) {
      this.#rows.clear();
      this.#groups.clear();
      this.body.replaceChildren(this.#nothing());
      return;
    }
    if (this.#groups.size === 0) this.body.replaceChildren();
    this.#drawGroups(shown);
    this.more ??= el("p", { class: "waiting" });
    this.more.hidden = all.length <= MOST_ROWS;
    setText(this.more, `${all.length - shown.length} more; filter for them.`);
    this.body.append(this.more);
  }

  #nothing() {
    if (this.#list.length > 0) return empty("Nothing matches.", "Clear the filter, or show ended ones, too.");
    return empty("Nothing runs here.", "Start a command, or a shell. Commands of others are shown to the peer who started them only.");
  }

  #drawGroups(list) {
    const sessions = Map.groupBy ? Map.groupBy(list, (each) => each.session ?? "") : grouped(list);
    const kept = new Set(list.map((each) => each.process_id));
    for (const [id, row] of this.#rows) if (!kept.has(id)) this.#drop(id, row);
    for (const [session, group] of this.#groups) if (!sessions.has(session)) this.#dropGroup(session, group);
    for (const [session, members] of sessions) {
      const list_ = this.#group(session, members[0]);
      for (const process of members) this.#row(process, list_).update(process);
    }
  }

  #drop(id, row) {
    row.element.remove();
    this.#rows.delete(id);
  }

  #dropGroup(session, group) {
    group.section.remove();
    this.#groups.delete(session);
  }

  #group(session, first) {
    if (!this.#groups.has(session)) {
      const list = el("ul", { class: "rows" });
      const title = session ? [el("span", {}, "Session "), named(session)] : ["No session"];
      if (first.own) title.push(el("span", { class: "tag" }, "this console's: ends with it"));
      const section = el("section", {}, el("h2", {}, ...title), list);
      this.body.append(section);
      this.#groups.set(session, { section, list });
    }
    return this.#groups.get(session).list;
  }

  #row(process, list) {
    if (!this.#rows.has(process.process_id)) {
      const row = new Row(this.#app, process, () => this.refresh());
      row.use(process, this.#history.get(process.process_id));
      list.append(row.element);
      this.#rows.set(process.process_id, row);
    }
    return this.#rows.get(process.process_id);
  }
}

function grouped(list) {
  const groups = new Map();
  for (const each of list) groups.set(each.session ?? "", [...(groups.get(each.session ?? "") ?? []), each]);
  return groups;
}

/** One process: its line, and what can be done with it. */
class Row {
  constructor(app, process, refresh) {
    this.app = app;
    this.process = process;
    this.refresh = refresh;
    this.state = el("span", { class: "state" });
    this.cpu = el("span", { class: "value" });
    this.memory = el("span", { class: "value" });
    this.lines = { cpu: new Sparkline("cpu", 100), memory: new Sparkline("memory", 16 * 1024 * 1024) };
    this.signal = button("Signal…", () => this.#ask());
    this.openButton = button("Open", () => app.terminals.open(this.#target()), { class: "main" });
    const line = commandLine(process.argv);
    this.element = el("li", { class: "process" },
      el("div", { class: "what" }, process.name ? el("strong", {}, named(process.name)) : null,
        el("code", {}, named(line || "(no command)")), this.state),
      el("div", { class: "use" }, el("span", { class: "label" }, "CPU"), this.cpu, this.lines.cpu.element),
      el("div", { class: "use" }, el("span", { class: "label" }, "Memory"), this.memory, this.lines.memory.element),
      el("div", { class: "actions" }, this.openButton, button("Log", () => showLog(app.link, this.#target())), this.signal));
  }

  update(process) {
    this.process = process;
    const running = process.state === "running";
    const end = process.exit_code === null || process.exit_code === undefined ? "ended" : `ended with status ${process.exit_code}`;
    const parts = [running ? `running for ${age(process.started, Date.now())}` : `${end}, started ${moment(process.started)}`];
    if (process.tty) parts.push("terminal");
    if (process.watchers > 0) parts.push(`${process.watchers} read along`);
    setText(this.state, parts.join(" · "));
    this.element.dataset.state = process.state;
    this.element.dataset.failed = String(!running && Boolean(process.exit_code));
    this.signal.hidden = !running;
    this.openButton.hidden = !running;
    if (!running) this.use({ cpu_percent: null, memory_bytes: null }, null);
  }

  use(process, series) {
    setText(this.cpu, percent(process.cpu_percent));
    setText(this.memory, bytes(process.memory_bytes));
    if (!series) return;
    this.lines.cpu.draw(series.cpu);
    this.lines.memory.draw(series.memory);
  }

  #target() {
    const { process_id, name, argv, tty } = this.process;
    return { box: this.app.box.name, process_id, title: name || commandLine(argv).slice(0, 60), tty };
  }

  async #ask() {
    const what = this.#target();
    const signal = await chosen("Send a signal", `To ${visible(what.title)} and its process group.`, SIGNALS);
    if (!signal) return;
    const sure = signal !== "KILL" || (await confirmed("Kill it?", "It gets no chance to save anything.", "Kill"));
    if (!sure) return;
    const call = this.app.link.call("process.signal", { box: what.box, process_id: what.process_id, signal });
    if (await this.app.doing("Signal", call)) this.refresh();
  }
}

/** Ask what to start; resolves to the params of `process.start` without the box, or null. */
export async function askStart(fill) {
  const text = (value = "") => Object.assign(el("input", { type: "text", autocomplete: "off", spellcheck: "false" }), { value });
  const command = text();
  command.autofocus = true;
  const folder = text();
  const name = text();
  const tty = el("input", { type: "checkbox", checked: true });
  const keep = el("input", { type: "checkbox" });
  const sandbox = el("select", {}, ...[["", "the box's own user, no sandbox"], ["read-only", "read-only"],
    ["workspace-write", "workspace-write: writes in its folder"]].map(([value, label]) => el("option", { value }, label)));
  const record = el("select", {}, ...[["", "nothing"], ["output", "what it prints"],
    ["all", "what it prints, and what is typed unless the terminal hides it"]].map(([value, label]) => el("option", { value }, label)));
  const fields = [
    field("Command", command, "A line for sh; empty: a login shell."), field("Folder", folder, "Empty: the home."),
    field("Name", name, "By which others find it; may be empty."), field("Sandbox", sandbox),
    field("Record", record, "Beside the audit log of the box, which needs one (--audit)."),
    el("label", { class: "check" }, tty, "With a terminal"),
    el("label", { class: "check" }, keep, "Goes on for 24 h without this console"),
  ];
  if (!(await fill("Start a command", fields, "Start"))) return null;
  const line = command.value.trim();
  return {
    ...(line ? { argv: ["sh", "-c", line], tty: tty.checked } : { tty: true }),
    ...(folder.value ? { cwd: folder.value } : {}), ...(name.value ? { name: name.value } : {}),
    ...(sandbox.value ? { sandbox: sandbox.value } : {}), ...(keep.checked ? { keep: true } : {}),
    ...(record.value ? { record: record.value } : {}),
  };
}
