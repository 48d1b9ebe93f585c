// Requests to the API with the session's cookie. Answers with an ETag are cached and revalidated on each request.

import { names } from "./names.js";

const MAX_CACHED = 50;

const cache = new Map();
let signedOut = () => {};
let scopeRefused = () => {};

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || "Something went wrong");
    this.status = status;
    this.code = body.code;
    this.errors = body.errors ?? {};
    this.requestId = body.request_id;
  }
}

export function onSignedOut(act) {
  signedOut = act;
}

export function onScopeRefused(act) {
  scopeRefused = act;
}

export const get = (path, options) => request("GET", path, undefined, options);
/** `version`: what is changed must still have it, or the answer is 412. */
export const send = (method, path, body, { version } = {}) => request(method, path, body, { version });

/** The items of a list that the API answers in slices: all of them, or the slices up to the first `max` items. */
export async function getAll(path, { max = 1000 } = {}) {
  const items = [];
  let cursor;
  do {
    const slice = await get(withQuery(path, { limit: names.max_slice, cursor }));
    items.push(...slice.items);
    cursor = slice.next_cursor;
  } while (cursor && items.length < max);
  return { items, hasMore: Boolean(cursor) };
}

/** The path with these parameters; empty ones are left out. */
export function withQuery(path, query) {
  const isGiven = ([, value]) => value !== undefined && value !== null && value !== "";
  return `${path}?${new URLSearchParams(Object.entries(query).filter(isGiven))}`;
}

/** `onOld` is called if the server answered from its cache: a newer answer may come soon. */
async function request(method, path, body, { signal, onOld, version } = {}) {
  const cached = method === "GET" ? cache.get(path) : undefined;
  const response = await fetchOrFail(path, {
    method,
    signal,
    headers: headersFor(cached, body, version),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "same-origin",
  });
  if (Number(response.headers.get("Age"))) onOld?.();
  if (response.status === 304 && cached) {
    store(path, cached);
    return cached.body;
  }
  if (!response.ok) throw await problemOf(response);
  if (response.status === 204) return null;
  const answer = await response.json();
  const etag = response.headers.get("ETag");
  if (method === "GET" && etag) store(path, { etag, body: answer });
  return answer;
}

function headersFor(cached, body, version) {
  const headers = { "X-Plaudit-Dashboard": "1" };
  if (cached) headers["If-None-Match"] = cached.etag;
  if (version !== undefined) headers["If-Match"] = `"${version}"`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return headers;
}

async function fetchOrFail(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "unreachable", detail: "Plaudit cannot be reached. Check your connection." });
  }
}

/** A Map keeps the order of insertion, so the first key is the least recently used one. */
function store(path, entry) {
  cache.delete(path);
  cache.set(path, entry);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
}

async function problemOf(response) {
  const body = await response.json().catch(() => ({ detail: `The server answered ${response.status}` }));
  if (response.status === 401 && body.code !== "invalid_credentials") {
    cache.clear();
    signedOut();
  }
  if (body.code === "public_boards_only") scopeRefused();
  return new Problem(response.status, body);
}
