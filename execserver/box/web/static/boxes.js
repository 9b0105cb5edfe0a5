// The boxes: which there are, which answer, which one is looked at.

import { button, el, empty, named, rove } from "./dom.js";
import { visible } from "./escapes.js";
import { failure } from "./notices.js";

const WORDS = { connected: "in use", reachable: "answers", unreachable: "does not answer", lost: "lost; resuming", ended: "ended" };

export class Boxes {
  #link;
  #choose;
  #listed;
  #asking = false;

  /** `onchoose(name)` is called when the person chooses a box, `onlist()` when they have answered. */
  constructor(element, link, onchoose, onlist) {
    this.element = element;
    this.#link = link;
    this.#choose = onchoose;
    this.#listed = onlist;
    this.all = null;
    this.list = el("ul", {}, el("li", { class: "waiting" }, "Asking the boxes…"));
    element.append(el("div", { class: "bar" }, el("h2", {}, "Boxes"), el("span", { class: "gap" }),
      button("↻", () => this.refresh(), { "aria-label": "Ask the boxes again", class: "quiet" })), this.list);
    rove(this.list, "button");
    link.addEventListener("connection", ({ detail }) => this.#state(detail));
  }

  /** Ask them all again; resolves when they have answered. */
  async refresh() {
    if (this.#asking) return;
    this.#asking = true;
    this.element.setAttribute("aria-busy", "true");
    try {
      this.all = await this.#link.call("boxes.list");
      this.draw(this.chosen);
      this.#listed();
    } catch (error) {
      if (this.all === null) this.list.replaceChildren(el("li", {}, failure(error, () => this.refresh())));
    } finally {
      this.#asking = false;
      this.element.removeAttribute("aria-busy");
    }
  }

  draw(chosen) {
    this.chosen = chosen;
    if (this.all === null) return;
    const focused = this.list.contains(document.activeElement);
    this.list.replaceChildren(...(this.all.length > 0 ? this.all.map((box) => this.#row(box)) : [el("li", {}, empty(
      "There are no boxes.", "`execserver box add NAME URL` notes one; then ask again.",
    ))]));
    if (focused) this.focus();
  }

  focus() {
    (this.list.querySelector("[aria-current]") ?? this.list.querySelector("button"))?.focus();
  }

  #row(box) {
    const facts = [WORDS[box.state] ?? box.state];
    if (box.latency_ms !== null && box.latency_ms !== undefined) facts.push(`${Math.round(box.latency_ms)} ms`);
    if (box.version) facts.push(box.version);
    const choose = el("button", {
      type: "button", class: "box", "data-state": box.state, onclick: () => this.#choose(box.name),
      "aria-current": box.name === this.chosen ? "true" : null,
    }, el("span", { class: "mark", "aria-hidden": "true" }), named(box.name), el("small", {}, visible(facts.join(" · "))));
    choose.title = [box.url, box.error].filter(Boolean).map(visible).join("\n");
    return el("li", {}, choose);
  }

  #state({ box, state }) {
    const known = this.all?.find((each) => each.name === box);
    if (!known) return;
    known.state = state;
    this.draw(this.chosen);
  }
}
