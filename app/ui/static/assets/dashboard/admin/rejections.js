// How many events were rejected in a window, by reason; and the addresses of refused views.

import { get, withQuery } from "../api.js";
import { choice, empty, failure } from "../components.js";
import { h, replace } from "../dom.js";
import { number } from "../format.js";
import { names, slidingWindows } from "../names.js";
import { card, dataTable, numberCell, numbers } from "./components.js";
import { unknownAddressesCard } from "./unknown_addresses.js";

export async function rejectionsTab() {
  let window = slidingWindows[0].name;
  const body = h("div", {});
  const windowChoice = choice("Window", slidingWindows, (name) => {
    window = name;
    read();
  });
  const read = async () => {
    windowChoice.select(window);
    try {
      const answer = await get(withQuery("/api/v1/ingest/rejections", { window }));
      if (answer.window === window) replace(body, tableOf(answer.reasons)); // else another was chosen meanwhile
    } catch (error) {
      replace(body, failure(error, read));
    }
  };
  await read();
  const filters = h("div", { class: "filters" }, windowChoice);
  return [card("Rejected events", "Nothing is dropped silently", filters, body), unknownAddressesCard()];
}

function tableOf(counts) {
  const reasons = Object.entries(counts).sort(([, a], [, b]) => b - a);
  if (!reasons.length) {
    return empty("No event was rejected in this period", "Rejected events are counted here by reason.");
  }
  const rows = reasons.map(([reason, count]) =>
    h(
      "tr",
      {},
      h("td", {}, h("code", {}, reason)),
      h("td", {}, names.rejection_reasons[reason] ?? ""),
      numberCell(number(count)),
    )
  );
  return dataTable(["Reason", "An event that…", numbers("Events")], rows);
}
