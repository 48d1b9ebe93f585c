// The API, with the session's cookie. Answers with an ETag are kept, and asked for again only if they changed.

const kept = new Map();
const MOST_KEPT = 50;
let whenSignedOut = () => {};
let whenScopeIsRefused = () => {};

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
  whenSignedOut = act;
}

export function onRefusedScope(act) {
  whenScopeIsRefused = act;
}

export const get = (path, options) => call("GET", path, undefined, options);
export const send = (method, path, body) => call(method, path, body);

export function address(path, query) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null && value !== "") search.set(name, value);
  return `${path}?${search}`;
}

/** `old()` is called for an answer that the server had kept: there may be a newer one soon. */
async function call(method, path, body, { signal, old } = {}) {
  const headers = { "X-Plaudit-Dashboard": "1" };
  const known = method === "GET" ? kept.get(path) : undefined;
  if (known) headers["If-None-Match"] = known.etag;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "unreachable", detail: "Plaudit cannot be reached. Check your connection." });
  }
  if (Number(answer.headers.get("Age"))) old?.();
  if (answer.status === 304 && known) {
    kept.delete(path);
    kept.set(path, known); // the last used is the last to go
    return known.body;
  }
  if (!answer.ok) throw await problemOf(answer);
  if (answer.status === 204) return null;
  const told = await answer.json();
  const etag = answer.headers.get("ETag");
  if (method === "GET" && etag) {
    kept.set(path, { etag, body: told });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return told;
}

async function problemOf(answer) {
  const told = await answer.json().catch(() => ({ detail: `The server answered ${answer.status}` }));
  if (answer.status === 401 && told.code !== "invalid_credentials") {
    kept.clear();
    whenSignedOut();
  }
  if (told.code === "public_boards_only") whenScopeIsRefused();
  return new Problem(answer.status, told);
}
