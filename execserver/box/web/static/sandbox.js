// Which sandboxes a box can enforce, what each is made of, and what keeps it from the rest.

import { button, el, named, setText } from "./dom.js";
import { failure } from "./notices.js";
import { visible } from "./escapes.js";

export class Sandbox {
  #app;

  constructor(app) {
    this.#app = app;
    this.note = el("p", { class: "waiting", role: "status" });
    this.body = el("div", {});
    this.element = el("div", { class: "view" }, this.note, this.body);
  }

  show() {
    this.refresh();
  }

  hide() {}

  /** Another box is looked at. */
  changed() {
    this.body.replaceChildren();
  }

  async refresh() {
    const box = this.#app.box;
    if (!box) return;
    setText(this.note, "The box tries its sandboxes…");
    try {
      const report = await this.#app.link.call("sandbox.report", { box: box.name });
      if (box.name === this.#app.box?.name) this.body.replaceChildren(...this.#draw(report));
    } catch (error) {
      this.body.replaceChildren(failure(error, () => this.refresh()));
    }
    setText(this.note, "");
  }

  #draw({ checks = [], policies = [], ...facts }) {
    const known = Object.entries(facts).filter(([, value]) => value === null || typeof value !== "object");
    return [
      el("h2", {}, "Policies"),
      el("ul", { class: "cards" }, ...policies.map(policy)),
      el("h2", {}, "What they are made of"),
      el("ul", { class: "rows checks" }, ...checks.map(check)),
      el("h2", {}, "Machine"),
      el("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [el("dt", {}, words(name)), el("dd", {}, shown(value))])),
      button("Try again", () => this.refresh()),
    ];
  }
}

function policy({ name, backEnd, detail, blocker, cure }) {
  return el("li", { "data-works": String(Boolean(backEnd)) }, el("h3", {}, named(name)),
    el("p", {}, backEnd ? `enforced by ${visible(backEnd)}` : "not available: such requests are refused"),
    ...reasons(detail, blocker, cure));
}

function check({ name, works, detail, blocker, cure }) {
  return el("li", { "data-works": String(works) },
    el("span", { class: "verdict" }, works ? "✓ works" : "✗ does not work"), el("strong", {}, named(name)),
    el("div", {}, ...reasons(detail, blocker, cure)));
}

function reasons(detail, blocker, cure) {
  const lines = [[detail, "about"], [blocker, "blocker"], [cure && `Cure: ${cure}`, "hint"]];
  return lines.filter(([text]) => text).map(([text, kind]) => el("p", { class: kind }, visible(text)));
}

function words(name) {
  return visible(name.replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " "));
}

function shown(value) {
  return value === true ? "yes" : value === false ? "no" : value === null || value === "" ? "–" : visible(value);
}
