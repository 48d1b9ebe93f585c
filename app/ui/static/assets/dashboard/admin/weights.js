// The weights of the score: a preview of what other weights would change, and the history of weights.

import { get, send } from "../api.js";
import { movement, nameOf } from "../board_table.js";
import { h, replace, userText } from "../dom.js";
import { form } from "../form.js";
import { dateTime, number } from "../format.js";
import { findMetric, findWindow, names } from "../names.js";
import { badge, card, dataTable, numberCell, numbers } from "./components.js";

const CHECK_PROGRESS_MS = 1500;
const COMPARED_WITH_NOW = { since: "compared with now", newTitle: "Not on the board now" };

export async function weightsTab(reload) {
  const current = await get("/api/v1/settings/weights");
  const history = current.history ?? [];
  const hasPlanned = history.some((version) => version.state === "planned");
  const preview = h("div", { role: "status" });
  const fields = names.weights.map(({ name, label }) => ({
    name,
    label,
    type: "number",
    value: current[name],
    min: 0,
    step: "any",
  }));
  const showPreview = async (weights) => {
    const { window } = names.defaults;
    const changes = await send("POST", "/api/v1/settings/weights/preview", { ...weights, window });
    replace(preview, previewOf(changes, findWindow(window)), applyForm(weights, hasPlanned, reload));
  };
  const weightsForm = form({ fields, action: "Preview", submit: showPreview });
  weightsForm.addEventListener("input", () => replace(preview)); // it was of other weights
  const cards = [
    card("Weights of the score", h("code", {}, current.formula), progressOf(current, reload), weightsForm, preview),
  ];
  if (history.length) cards.push(historyCard(history));
  return cards;
}

/** How far new weights are applied to the pages; reloads until they all are. */
function progressOf({ projected }, reload) {
  if (!projected || projected.done >= projected.total) return null;
  const text = `Being applied: ${number(projected.done)} of ${number(projected.total)} pages.`;
  const element = h("p", { class: "quiet", role: "status" }, text);
  setTimeout(() => element.isConnected && reload(), CHECK_PROGRESS_MS);
  return element;
}

function previewOf({ items, moved }, window) {
  const pages = moved === 1 ? "1 page" : `${number(moved)} pages`;
  const text = `${moved ? pages : "No page"} would move on the board of the last ${window.label}.`;
  const heads = [numbers("Rank"), "", "Page", numbers("Score")];
  return [h("p", {}, text), items.length ? dataTable(heads, items.map(previewRow)) : null];
}

function previewRow(item) {
  const isNew = item.rank_now === null;
  const change = { is_new: isNew, rank_change: isNew ? null : item.rank_now - item.rank };
  return h(
    "tr",
    {},
    numberCell(item.rank),
    h("td", {}, movement(change, COMPARED_WITH_NOW)),
    h("td", {}, userText(nameOf(item))),
    numberCell(`${number(item.score_now)} → ${number(item.score)}`),
  );
}

function applyForm(weights, hasPlanned, reload) {
  const question = [
    "Score every page by these weights from now on?",
    hasPlanned && "What was planned for later will not take effect.",
  ].filter(Boolean).join(" ");
  return form({
    action: "Apply these weights",
    fields: [],
    submit: async () => {
      if (!confirm(question)) return;
      await send("PUT", "/api/v1/settings/weights", weights);
      reload();
    },
  });
}

function historyCard(history) {
  const weightHeads = names.weights.map(({ name }) => numbers(findMetric(name).label));
  const rows = history.map((version) =>
    h(
      "tr",
      {},
      h("td", {}, version.version),
      h("td", {}, badge(version.state)),
      names.weights.map(({ name }) => numberCell(number(version[name]))),
      h("td", {}, version.effective_from ? dateTime(version.effective_from) : "from the start"),
    )
  );
  return card("History", "", dataTable(["Version", "", ...weightHeads, "From"], rows));
}
