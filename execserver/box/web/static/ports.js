// What listens on a box, and which of it this machine forwards to.

import { button, el, empty, field, named, setText } from "./dom.js";
import { failure } from "./notices.js";
import { visible } from "./escapes.js";

export class Ports {
  #app;
  #turn = 0;

  constructor(app) {
    this.#app = app;
    this.number = el("input", { type: "number", min: 1, max: 65535, required: true, inputmode: "numeric" });
    this.note = el("p", { class: "waiting", role: "status" });
    this.list = el("ul", { class: "rows" });
    this.element = el("div", { class: "view" },
      el("p", {}, "A forwarded port of the box is open on this machine's loopback address until the console ends."),
      el("form", { class: "bar", onsubmit: (event) => this.#typed(event) },
        field("Port of the box", this.number), el("button", { type: "submit", class: "main" }, "Forward it"),
        el("span", { class: "gap" }), button("Read again", () => this.refresh())),
      this.note, this.list);
  }

  show() {
    this.refresh();
  }

  hide() {}

  /** Another box is looked at. */
  changed() {
    this.list.replaceChildren();
  }

  async refresh() {
    const box = this.#app.box;
    if (!box) return;
    const turn = ++this.#turn;
    setText(this.note, "Looking for what listens…");
    try {
      const ports = await this.#app.link.call("ports.list", { box: box.name });
      if (turn !== this.#turn) return;
      setText(this.note, "");
      this.list.replaceChildren(...(ports.length > 0 ? ports.map((each) => this.#row(each)) : [el("li", {}, empty(
        "Nothing listens there, as far as the box tells.", "Start a server in a terminal and read again, or enter its port.",
      ))]));
    } catch (error) {
      if (turn !== this.#turn) return;
      setText(this.note, "");
      this.list.replaceChildren(el("li", {}, failure(error, () => this.refresh())));
    }
  }

  #row(port) {
    const about = [port.process, port.process_id && `process ${port.process_id}`, port.user].filter(Boolean).map(visible).join(" · ");
    const act = port.url
      ? [el("a", { href: safe(port.url), target: "_blank", rel: "noopener noreferrer" }, visible(port.url)),
        button("Close", () => this.#close(port.url), { "aria-label": `Close the forwarding of port ${port.port}` })]
      : [button("Forward", () => this.#forward(port.port, port.address), { class: "main", "aria-label": `Forward port ${port.port}` })];
    return el("li", { class: "port" }, el("strong", {}, String(port.port)), el("span", {}, named(port.address ?? "")),
      el("span", { class: "about" }, about), el("span", { class: "actions" }, ...act));
  }

  #typed(event) {
    event.preventDefault();
    this.#forward(Number(this.number.value), null);
  }

  async #forward(port, address) {
    const params = { box: this.#app.box.name, port, ...(address ? { address } : {}) };
    const done = await this.#app.doing(`Forward ${port}`, this.#app.link.call("ports.forward", params));
    if (!done) return;
    this.#app.tell(`Port ${port} of ${this.#app.box.name} is at ${done.url}`);
    this.number.value = "";
    await this.refresh();
  }

  async #close(url) {
    if (await this.#app.doing("Close", this.#app.link.call("ports.close", { url }))) await this.refresh();
  }
}

/** Only an address on loopback may be followed. */
function safe(url) {
  return /^http:\/\/(127\.0\.0\.1|\[::1\]|localhost):\d+\/?$/.test(url) ? url : "#";
}
