// Uploads: one file after the other, each with its progress; nothing on the box is replaced unasked.

import { bytes } from "./amounts.js";
import { button, el, named, setText } from "./dom.js";
import { joined, pathInQuery, visible } from "./escapes.js";
import { confirmed } from "./dialogs.js";

const MOST_WAITING = 1000;

export class Uploads {
  #app;
  #folder;
  #done;
  #waiting = [];
  #busy = false;

  /** `folder()` is where files go; `done()` is called when the last one is there. */
  constructor(app, folder, done) {
    this.#app = app;
    this.#folder = folder;
    this.#done = done;
    this.element = el("ul", { class: "uploads", "aria-label": "Uploads" });
    globalThis.addEventListener("dragover", (event) => event.preventDefault());
    globalThis.addEventListener("drop", (event) => event.preventDefault());
  }

  /** Whether closing the page would break something off. */
  get busy() {
    return this.#busy;
  }

  acceptDrops(area) {
    let depth = 0;
    const mark = (by) => {
      depth = Math.max(0, by === null ? 0 : depth + by);
      area.classList.toggle("dropping", depth > 0);
    };
    area.addEventListener("dragenter", () => mark(1));
    area.addEventListener("dragleave", () => mark(-1));
    area.addEventListener("drop", (event) => {
      event.preventDefault();
      mark(null);
      this.add(this.#filesOf(event.dataTransfer));
    });
  }

  /** Upload files into the folder that is shown now. */
  add(files) {
    const folder = this.#folder();
    if (folder === null) return;
    if (this.#waiting.length + files.length > MOST_WAITING) {
      this.#app.complain(new Error(`At most ${MOST_WAITING} files can wait; \`execserver cp\` copies more.`));
      return;
    }
    const box = this.#app.box.name;
    for (const file of files) this.#waiting.push(new Upload(box, folder, file, this.element));
    this.#work();
  }

  #filesOf(transfer) {
    const items = [...transfer.items].filter((item) => item.kind === "file");
    const folders = items.filter((item) => item.webkitGetAsEntry?.()?.isDirectory);
    if (folders.length > 0) this.#app.complain(new Error("Folders are not uploaded from here; `execserver cp` copies them."));
    return items.filter((item) => !folders.includes(item)).map((item) => item.getAsFile()).filter(Boolean);
  }

  async #work() {
    if (this.#busy) return;
    this.#busy = true;
    while (this.#waiting.length > 0) await this.#waiting.shift().run();
    this.#busy = false;
    this.#done();
  }
}

class Upload {
  #request = null;

  constructor(box, folder, file, list) {
    this.file = file;
    const path = joined(folder, file.name);
    this.url = `files?box=${encodeURIComponent(box)}&path=${pathInQuery(path)}`;
    this.progress = el("progress", { max: 1, value: 0, "aria-label": `Upload of ${visible(file.name)}` });
    this.state = el("span", { role: "status" }, "waits");
    this.stop = button("Cancel", () => this.#cancel(), { class: "quiet" });
    this.element = el("li", {}, named(file.name), this.progress, this.state, this.stop);
    list.append(this.element);
  }

  async run() {
    if (this.over) return;
    let answer = await this.#put({ "If-None-Match": "*" });
    if (answer.status === 412) {
      const text = `${visible(this.file.name)} is in this folder already.`;
      answer = (await confirmed("Replace it?", text, "Replace")) ? await this.#put({}) : { status: 0, text: "left as it was" };
    }
    const fine = answer.status === 201 || answer.status === 204;
    this.over = true;
    setText(this.state, fine ? `uploaded, ${bytes(this.file.size)}` : answer.text);
    this.element.dataset.state = fine ? "done" : "failed";
    this.progress.value = fine ? 1 : this.progress.value;
    setText(this.stop, "Dismiss");
    if (fine) setTimeout(() => this.element.remove(), 6000);
  }

  #put(headers) {
    return new Promise((resolve) => {
      const request = new XMLHttpRequest();
      this.#request = request;
      request.open("PUT", this.url);
      for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
      request.upload.onprogress = ({ loaded, total }) => this.#progress(loaded, total);
      request.onload = () => resolve({ status: request.status, text: request.responseText.slice(0, 500) || `status ${request.status}` });
      request.onerror = () => resolve({ status: 0, text: "the upload failed: the console's program did not answer, or it is no file" });
      request.onabort = () => resolve({ status: 0, text: "cancelled" });
      request.send(this.file);
    });
  }

  #progress(loaded, total) {
    this.progress.value = total ? loaded / total : 0;
    setText(this.state, `${bytes(loaded)} of ${bytes(total)}`);
  }

  #cancel() {
    if (this.over || this.#request === null) this.element.remove();
    this.over = true;
    this.#request?.abort();
  }
}
