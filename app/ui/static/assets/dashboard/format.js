// Numbers and times as people read them, in the reader's own language and time zone.

export const HOUR_S = 3600;
export const DAY_S = 86400;

const wholeNumber = new Intl.NumberFormat();
const decimalNumber = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const shortNumber = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (Number.isInteger(value) ? wholeNumber : decimalNumber).format(value);
export const compact = (value) => (Math.abs(value) < 10000 ? number(value) : shortNumber.format(value));

const DAY = { day: "numeric", month: "short" };
const WEEKDAY = { ...DAY, weekday: "short" };
const weekday = new Intl.DateTimeFormat(undefined, WEEKDAY);
const utcWeekday = new Intl.DateTimeFormat(undefined, { ...WEEKDAY, timeZone: "UTC" });
const day = new Intl.DateTimeFormat(undefined, DAY);
const utcDay = new Intl.DateTimeFormat(undefined, { ...DAY, timeZone: "UTC" });
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const relativeTime = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

export const dateTime = (text) => dayAndTime.format(new Date(text));

/** The period of a point of a series. The days of a page are days in UTC; hours are in the reader's time zone. */
export function period(at, seconds, isUtcDay) {
  const start = new Date(at);
  const end = new Date(start.getTime() + seconds * 1000);
  if (isUtcDay) return `${utcWeekday.format(start)} (UTC)`;
  if (seconds < DAY_S) return `${weekday.format(start)}, ${time.format(start)} – ${time.format(end)}`;
  return `${day.format(start)}, ${time.format(start)} – ${day.format(end)}, ${time.format(end)}`;
}

/** The label under the time axis of a chart that covers `seconds` in all. */
export function tick(at, seconds, isUtcDay) {
  if (isUtcDay) return utcDay.format(new Date(at));
  return (seconds <= 2 * DAY_S ? time : day).format(new Date(at));
}

export function ago(text) {
  const seconds = Math.max(0, (Date.now() - new Date(text)) / 1000);
  if (seconds < 90) return "just now";
  if (seconds < 90 * 60) return relativeTime.format(-Math.round(seconds / 60), "minute");
  if (seconds < 36 * HOUR_S) return relativeTime.format(-Math.round(seconds / HOUR_S), "hour");
  return relativeTime.format(-Math.round(seconds / DAY_S), "day");
}
