// The admin's part: clients and keys, the action catalog, weights with a preview, suspicious scores, rejected events.

import { choice, failure, loading } from "../components.js";
import { h, replace } from "../dom.js";
import { accessTab } from "./access.js";
import { actionsTab } from "./actions.js";
import { integrityTab } from "./integrity.js";
import { rejectionsTab } from "./rejections.js";
import { weightsTab } from "./weights.js";

// `render(reload)` reads from the API and returns the cards to show; `reload` shows the tab again after a change.
const TABS = [
  { name: "access", label: "Clients and keys", render: accessTab },
  { name: "actions", label: "Action catalog", render: actionsTab },
  { name: "weights", label: "Weights", render: weightsTab },
  { name: "integrity", label: "Suspicious scores", render: integrityTab },
  { name: "rejections", label: "Rejected events", render: rejectionsTab },
];

export class AdminView {
  constructor(root, context) {
    this.context = context;
    this.tabChoice = choice("Part", TABS, (name) => context.go(`/dashboard/admin/${name}`));
    this.body = h("div", { class: "admin" });
    replace(root, h("div", { class: "filters" }, this.tabChoice), this.body);
  }

  show(_query, name) {
    const tab = TABS.find((one) => one.name === name) ?? TABS[0];
    this.context.setTitle(tab.label);
    this.tabChoice.select(tab.name);
    replace(this.body, h("section", { class: "card" }, loading(5)));
    this.open(tab);
  }

  async open(tab) {
    this.tab = tab;
    const isShown = () => this.tab === tab;
    const reload = () => isShown() && this.open(tab);
    try {
      const cards = await tab.render(reload);
      if (isShown()) replace(this.body, cards);
    } catch (error) {
      if (isShown() && error.status !== 401) {
        replace(this.body, h("section", { class: "card" }, failure(error, reload)));
      }
    }
  }

  onChange() {}

  stop() {
    this.tab = null;
  }
}
