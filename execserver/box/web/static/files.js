// The files of a box: a folder at a time; open, upload, download, rename, delete.

import { bytes, moment, permissions } from "./amounts.js";
import { button, el, empty, named, rove, setText } from "./dom.js";
import { joined, nameOf, parentOf, pathInQuery, visible } from "./escapes.js";
import { confirmed, entered } from "./dialogs.js";
import { Editor } from "./editor.js";
import { failure } from "./notices.js";
import { Uploads } from "./uploads.js";

const ROWS_AT_A_TIME = 300;

export class Files {
  #app;
  #path = null;
  #entries = [];
  #shown = ROWS_AT_A_TIME;
  #turn = 0;
  #typing = false; // another path is being typed while the folder is read

  constructor(app) {
    this.#app = app;
    this.filter = el("input", { type: "search", placeholder: "Filter", "aria-label": "Filter files", oninput: () => this.#draw() });
    this.crumbs = el("nav", { class: "crumbs", "aria-label": "Folder" });
    this.place = el("input", { type: "text", class: "place", "aria-label": "Path", spellcheck: "false", autocomplete: "off" });
    this.place.addEventListener("input", () => { this.#typing = true; });
    this.note = el("p", { class: "waiting", role: "status" });
    this.list = el("ul", { class: "rows files" });
    this.more = button("Show more", () => this.#showMore(), { hidden: true });
    this.chooser = el("input", { type: "file", multiple: true, hidden: true, onchange: () => this.#chosen() });
    this.uploads = new Uploads(app, () => this.#path, () => this.refresh());
    this.editor = new Editor(app, () => this.#closedEditor(), (path) => this.downloadUrl(path));
    this.browser = el("div", { class: "browser" },
      el("form", { class: "bar", onsubmit: (event) => this.#went(event) },
        button("Up", () => this.up(), { title: "The folder above (Backspace)" }), this.place,
        button("Home", () => this.open(null))),
      this.crumbs,
      el("div", { class: "bar" }, this.filter, el("span", { class: "gap" }),
        button("Upload…", () => this.chooser.click(), { class: "main" }), this.chooser,
        button("New folder", () => this.#newFolder()), button("New file", () => this.#newFile())),
      this.uploads.element, this.note, this.list, this.more,
      el("p", { class: "drop-note" }, "Drop files anywhere here to upload them."));
    this.element = el("div", { class: "view files-view" }, this.browser, this.editor.element);
    this.uploads.acceptDrops(this.browser);
    rove(this.list, ".entry");
    this.element.addEventListener("keydown", (event) => this.#key(event));
  }

  async show() {
    if (this.#path === null) await this.open(null);
  }

  hide() {}

  /** Another box is looked at. */
  changed() {
    this.#path = null;
    this.#entries = [];
    this.editor.forget();
    this.list.replaceChildren();
  }

  /** Whether something would be lost. */
  get unsaved() {
    return this.editor.modified;
  }

  async refresh() {
    if (this.#path !== null && this.editor.element.hidden) await this.open(this.#path, true);
  }

  downloadUrl(path) {
    return `files?box=${encodeURIComponent(this.#app.box.name)}&path=${pathInQuery(path)}`;
  }

  /** List a folder, null for the home. */
  async open(path, again = false) {
    const box = this.#app.box;
    if (!box) return;
    const turn = ++this.#turn;
    this.#typing = false;
    setText(this.note, "Reading the folder…");
    try {
      const page = await this.#app.link.call("files.list", { box: box.name, ...(path === null ? {} : { path }) });
      if (turn !== this.#turn || box.name !== this.#app.box?.name) return;
      if (!again) this.#shown = ROWS_AT_A_TIME;
      if (page.path !== this.#path) this.filter.value = "";
      this.#path = page.path;
      this.#entries = page.entries.sort(inOrder);
      this.truncated = page.truncated;
      if (!this.#typing) this.place.value = page.path;
      this.#drawCrumbs();
      this.#draw();
    } catch (error) {
      if (turn !== this.#turn) return;
      if (path !== null) this.place.value = path;
      setText(this.note, "");
      this.list.replaceChildren(el("li", {}, failure(error, () => this.open(path))));
      this.more.hidden = true;
    }
  }

  up() {
    if (this.#path === null || this.#path === "/") return;
    const from = nameOf(this.#path);
    this.open(parentOf(this.#path)).then(() => this.#focus(from));
  }

  #went(event) {
    event.preventDefault();
    const typed = this.place.value.trim();
    if (typed) this.open(typed.startsWith("/") ? typed : joined(this.#path ?? "/", typed));
  }

  #drawCrumbs() {
    const parts = this.#path.split("/").filter(Boolean);
    const crumb = (path, text) => button(text, () => this.open(path), { class: "quiet" });
    const all = parts.map((part, at) => crumb(`/${parts.slice(0, at + 1).join("/")}`, named(part)));
    all.at(-1)?.setAttribute("aria-current", "location");
    this.crumbs.replaceChildren(crumb("/", "/"), ...all);
  }

  #draw() {
    const wanted = this.filter.value.toLowerCase();
    const all = this.#entries.filter((each) => each.name.toLowerCase().includes(wanted));
    const focused = document.activeElement?.closest?.(".files .entry")?.dataset.at;
    this.list.replaceChildren(...all.slice(0, this.#shown).map((each, at) => this.#row(each, at)));
    if (focused !== undefined) this.list.querySelector(`.entry[data-at="${focused}"]`)?.focus();
    this.more.hidden = all.length <= this.#shown;
    setText(this.more, `Show ${Math.min(ROWS_AT_A_TIME, all.length - this.#shown)} more of ${all.length}`);
    const cut = this.truncated ? `The first ${this.#entries.length} entries; the folder has more.` : "";
    setText(this.note, cut || (all.length === this.#entries.length ? "" : `${all.length} of ${this.#entries.length}`));
    if (all.length === 0) this.list.replaceChildren(el("li", {}, this.#nothing()));
  }

  #nothing() {
    return this.#entries.length > 0 ? empty("Nothing matches the filter.")
      : empty("This folder is empty.", "Drop files here, or make a new one.");
  }

  #showMore() {
    const at = this.#shown;
    this.#shown += ROWS_AT_A_TIME;
    this.#draw();
    this.list.querySelector(`.entry[data-at="${at}"]`)?.focus();
  }

  #row(entry, at) {
    const path = joined(this.#path, entry.name);
    const folder = entry.kind === "directory";
    const open = button(named(entry.name), () => this.#enter(entry, path), { class: "entry", "data-at": at });
    open.entry = entry;
    const actions = [
      entry.kind === "file" ? el("a", { class: "button", href: this.downloadUrl(path), download: "" }, "Download") : null,
      button("Rename", () => this.#rename(entry)), button("Delete", () => this.#remove(entry), { class: "danger" }),
    ];
    for (const each of actions) each?.setAttribute("aria-label", `${each.textContent} ${visible(entry.name)}`);
    return el("li", { class: `file ${entry.kind}` },
      el("span", { class: "kind", "aria-label": KINDS[entry.kind] ?? entry.kind, role: "img" }, folder ? "▸" : entry.kind === "file" ? "·" : "∗"),
      open, el("span", { class: "size" }, folder ? "" : bytes(entry.size)),
      el("span", { class: "time" }, moment(entry.mtime_ms)), el("code", { class: "mode" }, permissions(entry.mode)),
      el("span", { class: "actions" }, ...actions));
  }

  #enter(entry, path) {
    if (entry.kind === "directory") this.open(path).then(() => this.#focus(null));
    else if (entry.kind === "file") this.#edit(path);
    else this.#app.complain(new Error(`${visible(entry.name)} is neither a file nor a folder.`));
  }

  async #edit(path) {
    if (await this.editor.open(path)) this.browser.hidden = true;
  }

  #closedEditor() {
    const name = this.editor.path ? nameOf(this.editor.path) : null;
    this.browser.hidden = false;
    if (this.#path !== null) this.open(this.#path, true).then(() => this.#focus(name));
  }

  #focus(name) {
    const all = [...this.list.querySelectorAll(".entry")];
    (all.find((each) => each.entry.name === name) ?? all[0])?.focus();
  }

  #key(event) {
    if (event.target.matches("input, textarea") || event.ctrlKey || event.altKey || event.metaKey) return;
    const entry = event.target.closest(".file")?.querySelector(".entry").entry;
    if (event.key === "Backspace" && this.editor.element.hidden) this.up();
    else if (event.key === "F2" && entry) this.#rename(entry);
    else if (event.key === "Delete" && entry) this.#remove(entry);
    else return;
    event.preventDefault();
  }

  async #change(doing, method, params) {
    const done = await this.#app.doing(doing, this.#app.link.call(method, { box: this.#app.box.name, ...params }));
    if (done) await this.refresh();
    return Boolean(done);
  }

  async #rename(entry) {
    const name = await entered("Rename", "New name", entry.name, "Rename");
    if (!name || name === entry.name) return;
    if (!this.#isName(name)) return;
    if (this.#entries.some((each) => each.name === name)
      && !(await confirmed("Replace it?", `${visible(name)} is there already and would be replaced.`, "Replace"))) return;
    const done = await this.#change("Rename", "files.rename", {
      from: joined(this.#path, entry.name), to: joined(this.#path, name),
    });
    if (done) this.#focus(name);
  }

  async #remove(entry) {
    const folder = entry.kind === "directory";
    const what = folder ? "the folder and all that is in it" : "the file";
    const sure = await confirmed(`Delete ${visible(entry.name)}?`, `This deletes ${what}. It cannot be undone.`, "Delete");
    if (sure) await this.#change("Delete", "files.remove", { path: joined(this.#path, entry.name), recursive: folder });
  }

  async #newFolder() {
    const name = await entered("New folder", "Name", "", "Make");
    if (!name || !this.#isName(name)) return;
    if (await this.#change("New folder", "files.mkdir", { path: joined(this.#path, name) })) this.#focus(name);
  }

  async #newFile() {
    const name = await entered("New file", "Name", "", "Make");
    if (!name || !this.#isName(name)) return;
    const path = joined(this.#path, name);
    if (await this.#change("New file", "files.write", { path, text: "", version: null })) await this.#edit(path);
  }

  #isName(name) {
    const fine = name !== "." && name !== ".." && !name.includes("/");
    if (!fine) this.#app.complain(new Error("A name has no slash, and is not . or .."));
    return fine;
  }

  #chosen() {
    this.uploads.add([...this.chooser.files]);
    this.chooser.value = "";
  }
}

const KINDS = { directory: "folder", file: "file", other: "neither file nor folder" };
const order = new Intl.Collator(undefined, { numeric: true });

function inOrder(one, other) {
  const folders = Number(other.kind === "directory") - Number(one.kind === "directory");
  return folders || order.compare(one.name, other.name);
}
