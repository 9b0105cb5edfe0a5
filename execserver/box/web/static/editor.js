// One text file: view, edit, save; what has changed on the box meanwhile is never overwritten unasked.

import { bytes } from "./amounts.js";
import { button, el, named, setText } from "./dom.js";
import { nameOf, visible } from "./escapes.js";
import { confirmed } from "./dialogs.js";
import { complain, tell } from "./notices.js";
import { canPlay, parsed, playRecording } from "./recording.js";

export class Editor {
  #app;
  #onclose;
  #url;
  #box = null;
  #version = null;
  #saved = "";
  #crlf = false;
  #readonly = false;
  #saving = false;

  constructor(app, onclose, url) {
    this.#app = app;
    this.#onclose = onclose;
    this.#url = url;
    this.path = null;
    this.title = el("h2", {});
    this.state = el("span", { role: "status", class: "terminal-state" });
    this.text = el("textarea", {
      spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-label": "Content", oninput: () => this.#tell(),
    });
    this.saveButton = button("Save", () => this.save(), { class: "main", title: "Ctrl+S" });
    this.playButton = button("Play…", () => this.#play(), { hidden: true, title: "Play the recording" });
    this.download = el("a", { class: "button", download: "" }, "Download");
    this.conflict = el("div", { class: "conflict", role: "alert", hidden: true });
    this.element = el("section", { class: "editor", hidden: true },
      el("div", { class: "bar" }, button("Back", () => this.close()), this.title, this.state,
        el("span", { class: "gap" }), this.playButton, this.download, this.saveButton),
      this.conflict, this.text);
    this.element.addEventListener("keydown", (event) => this.#key(event));
  }

  get modified() {
    return !this.element.hidden && !this.#readonly && this.text.value !== this.#saved;
  }

  /** Show a file; resolves to whether it is shown. */
  async open(path) {
    this.#box = this.#app.box.name;
    let read;
    try {
      read = await this.#app.link.call("files.read", { box: this.#box, path });
    } catch (error) {
      complain(error, `Open ${visible(nameOf(path))}`);
      return false;
    }
    this.path = path;
    this.#fill(read);
    this.title.replaceChildren(named(nameOf(path)));
    this.download.href = this.#url(path);
    this.conflict.hidden = true;
    this.element.hidden = false;
    this.text.focus();
    this.text.setSelectionRange(0, 0);
    this.text.scrollTop = 0;
    return true;
  }

  /** Go back to the folder; asks first if something would be lost. */
  async close() {
    if (!(await this.mayGo())) return;
    this.element.hidden = true;
    this.#onclose();
  }

  /** Ask, if something would be lost, whether to go on. */
  async mayGo() {
    if (!this.modified) return true;
    return confirmed("Leave it unsaved?", `Your changes to ${visible(nameOf(this.path))} are not saved.`, "Discard them");
  }

  forget() {
    const closed = !this.element.hidden;
    this.element.hidden = true;
    if (closed) this.#onclose();
  }

  /** Write it back, if it is still what was read. */
  async save(overwrite = false) {
    if (this.#readonly || this.#saving) return;
    this.#saving = true;
    const value = this.text.value;
    const text = this.#crlf ? value.replaceAll("\n", "\r\n") : value;
    setText(this.state, "saving…");
    const params = { box: this.#box, path: this.path, text, ...(overwrite ? {} : { version: this.#version }) };
    try {
      const { version } = await this.#app.link.call("files.write", params);
      this.#version = version;
      this.#saved = value;
      this.conflict.hidden = true;
      tell(`${nameOf(this.path)} is saved.`);
    } catch (error) {
      if (error.code === "changed" || error.code === "not-found") this.#ask(error.code);
      else complain(error, "Save");
    }
    this.#saving = false;
    this.#tell();
  }

  #ask(code) {
    const gone = code === "not-found";
    const what = gone ? "The file is gone from the box meanwhile." : "The file has changed on the box meanwhile.";
    this.conflict.replaceChildren(
      el("p", {}, el("strong", {}, what), " Nothing was written; your text is still here."),
      el("div", { class: "buttons" },
        gone ? null : button("Reload, and lose your changes", () => this.#reload()),
        button(gone ? "Save it again" : "Save anyway", () => this.save(true), { class: "danger" }),
        button("Go on editing", () => { this.conflict.hidden = true; this.text.focus(); })));
    this.conflict.hidden = false;
    this.conflict.querySelector("button").focus();
  }

  async #reload() {
    const at = this.text.scrollTop;
    await this.open(this.path);
    this.text.scrollTop = at;
  }

  #play() {
    let recording;
    try {
      recording = parsed(this.text.value, { cut: this.cut });
    } catch (error) {
      complain(error, `Play ${visible(nameOf(this.path))}`);
      return;
    }
    playRecording(recording, nameOf(this.path));
  }

  #fill({ text, version, truncated, size }) {
    this.#version = version;
    const plain = text ?? "";
    const ends = plain.match(/\r\n|\r|\n/g) ?? [];
    this.#crlf = ends.length > 0 && ends.every((each) => each === "\r\n");
    this.playButton.hidden = !canPlay || text === null || !this.path.endsWith(".cast");
    this.cut = truncated;
    const mixed = !this.#crlf && plain.includes("\r");
    this.#readonly = text === null || truncated || mixed;
    this.text.value = plain;
    this.#saved = this.text.value;
    this.text.readOnly = this.#readonly;
    this.text.hidden = text === null;
    this.why = text === null ? `${bytes(size)} that are no text: download it`
      : truncated ? `read only: the beginning of ${bytes(size)}` : mixed ? "read only: its lines end in different ways" : "";
    this.#tell();
  }

  #tell() {
    setText(this.state, this.why || (this.modified ? "not saved" : this.#crlf ? "saved · CRLF" : "saved"));
    this.state.dataset.state = this.modified ? "reader" : "writer";
    this.saveButton.hidden = this.#readonly;
    this.saveButton.disabled = !this.modified;
  }

  #key(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      if (this.modified) this.save();
    } else if (event.key === "Escape") {
      event.preventDefault();
      this.close();
    }
  }
}
