// The server's tables of names, which the page carries as JSON (app/ui/labels.py): windows, metrics, reasons and so on.
// No script repeats them, so a new metric or window needs no change here.

export const names = JSON.parse(document.getElementById("names").textContent);

export const windows = names.windows;
export const slidingWindows = windows.filter((window) => window.is_sliding);
export const pageMetrics = names.metrics.filter((metric) => metric.subject === "page");
export const userMetrics = names.metrics.filter((metric) => metric.subject === "user");
/** The metrics that are counted hour by hour, so they have totals and a series. */
export const countedMetrics = names.metrics.filter((metric) => metric.is_counted);

export const findWindow = (name) => find(windows, name);
export const findMetric = (name) => find(names.metrics, name);

/** `name` if the table has it, else `fallback`: an address may ask for anything. */
export const nameIn = (table, name, fallback) => (find(table, name) ? name : fallback);

/** Replaces each `{key}` of a text from the server. */
export function fillIn(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, key) => (key in values ? values[key] : whole));
}

function find(table, name) {
  return table.find((entry) => entry.name === name);
}
