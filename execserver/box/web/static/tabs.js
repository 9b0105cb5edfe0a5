// A row of tabs: one is chosen; the arrow keys move between them.

import { el, rove } from "./dom.js";

/** Makes `tablist` a row of tabs and calls `onchoose(id)` when the person chooses one. */
export class Tabs {
  #list;
  #choose;
  #tabs = new Map();

  constructor(tablist, onchoose) {
    this.#list = tablist;
    this.#choose = onchoose;
    rove(tablist, "[role=tab]", { horizontal: true });
  }

  /** Add a tab for a panel; its content may be elements. */
  add(id, panel, ...content) {
    const tab = el("button", {
      type: "button", role: "tab", id: `tab-${id}`, "aria-controls": panel.id, "aria-selected": "false",
      tabindex: "-1", onclick: () => this.#choose(id),
    }, ...content);
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    this.#list.append(tab);
    this.#tabs.set(id, { tab, panel });
    return tab;
  }

  /** Show one panel and hide the others. */
  select(chosen) {
    for (const [id, { tab, panel }] of this.#tabs) {
      tab.setAttribute("aria-selected", String(id === chosen));
      tab.tabIndex = id === chosen ? 0 : -1;
      panel.hidden = id !== chosen;
    }
  }

  remove(id) {
    const { tab, panel } = this.#tabs.get(id);
    this.#tabs.delete(id);
    tab.remove();
    panel.remove();
  }

  get ids() {
    return [...this.#tabs.keys()];
  }

  focus(id) {
    this.#tabs.get(id)?.tab.focus();
  }
}
