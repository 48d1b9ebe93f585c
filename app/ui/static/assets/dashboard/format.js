// Numbers and times as people read them, in the reader's own language and time zone.

const whole = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const decimal = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const number = (value) => (Number.isInteger(value) ? whole : decimal).format(value);
export const compact = (value) => (Math.abs(value) < 10000 ? number(value) : short.format(value));

export const WINDOWS = [
  ["1d", "24 hours"],
  ["7d", "7 days"],
  ["30d", "30 days"],
  ["all", "All time"],
];
export const windowName = (window) => new Map(WINDOWS).get(window);
export const METRICS = [
  ["score", "Score"],
  ["views", "Views"],
  ["likes", "Likes"],
];
export const metricName = (metric) => ({ ...Object.fromEntries(METRICS), points: "Points" })[metric];

const dayOf = (timeZone) => new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", timeZone });
const shortDayOf = (timeZone) => new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone });
const day = dayOf(undefined);
const shortDay = shortDayOf(undefined);
const utcDay = dayOf("UTC");
const utcShortDay = shortDayOf("UTC");
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const both = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const dateTime = (text) => both.format(new Date(text));

/** When a point of a series was. Days of a page are days of UTC, whatever the reader's are; hours are the reader's. */
export function span(at, seconds, isUtcDay) {
  const start = new Date(at);
  const end = new Date(start.getTime() + seconds * 1000);
  if (isUtcDay) return `${utcDay.format(start)} (UTC)`;
  if (seconds < 86400) return `${day.format(start)}, ${time.format(start)} – ${time.format(end)}`;
  return `${shortDay.format(start)}, ${time.format(start)} – ${shortDay.format(end)}, ${time.format(end)}`;
}

export function tick(at, wholeS, isUtcDay) {
  if (isUtcDay) return utcShortDay.format(new Date(at));
  return wholeS <= 2 * 86400 ? time.format(new Date(at)) : shortDay.format(new Date(at));
}

export function ago(text) {
  const seconds = Math.max(0, (Date.now() - new Date(text)) / 1000);
  const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
  if (seconds < 90) return "just now";
  if (seconds < 5400) return relative.format(-Math.round(seconds / 60), "minute");
  if (seconds < 129600) return relative.format(-Math.round(seconds / 3600), "hour");
  return relative.format(-Math.round(seconds / 86400), "day");
}
