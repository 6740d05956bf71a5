// Requests to the API. Paths are relative to the page, so the service also works below a prefix.
import { sawVersion, share, shared } from "./store.js";

/** An error in the words of the server (RFC 9457), or of the browser if there was no answer. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered with the status ${status}.`);
    this.status = status;
    this.kind = String(body.type || "").replace("urn:unimp:problem:", "");
    this.problems = (body.problems || []).map((one) =>
      typeof one === "string" ? one : `${one.place + 1}: ${one.problem}`);
    this.versions = body.versions || {};
  }
}

export class Unreachable extends Error {
  constructor() {
    super("The server does not answer. This page tries again until it does.");
    this.status = 0;
  }
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const RETRIES = 6; // of reads that ask for a version which the engine has not reached yet

async function send(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    share({ connection: "lost" });
    throw new Unreachable();
  }
}

async function parsed(response) {
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    body = { detail: `The answer to ${new URL(response.url).pathname} is not JSON.` };
    if (response.ok) throw new Problem(response.status, body);
  }
  if (response.ok) return body;
  if (response.status === 401) share({ signedOut: true });
  throw new Problem(response.status, body);
}

/**
 * Read. after: the answer should reflect this version, such as that of a write of this page. If the
 * engine does not reach it within seconds, the published answer is shown; its stamp states the lag.
 */
export async function read(path, query = {}, { signal, after = 0 } = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  for (let tries = 0; ; tries++) {
    const asked = after && tries < RETRIES ? [...kept, ["min_version", after]] : kept;
    const address = asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
    const response = await send(address, { signal });
    if (response.status === 503 && response.headers.has("Retry-After") && tries < RETRIES) {
      await pause(Math.min(1000, 100 * 2 ** tries));
      continue;
    }
    const body = await parsed(response);
    if (body.acknowledged) sawVersion(body.acknowledged);
    return body;
  }
}

/** Ask with a body, without writing anything. */
export async function ask(path, body, { signal } = {}) {
  const headers = { "Content-Type": "application/json" };
  return parsed(await send(path, { method: "POST", headers, body: JSON.stringify(body), signal }));
}

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Resolves as soon as the server answers again. */
function reconnected() {
  return new Promise((resolve) => {
    const check = () => (shared.connection === "live" ? resolve() : setTimeout(check, 200));
    check();
  });
}

/**
 * Write. seen: the label version that the person has seen (If-Match). If the server cannot be
 * reached, the write waits and is repeated with the same key, so that it is stored once.
 */
export async function write(method, path, body, { seen } = {}) {
  const headers = { "Idempotency-Key": newKey() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (seen !== undefined) headers["If-Match"] = `"${seen}"`;
  const options = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
  let waited = false;
  try {
    for (;;) {
      try {
        const written = await parsed(await send(path, options));
        if (written.version) {
          sawVersion(written.version);
          share({ written: Math.max(shared.written, written.version) });
        }
        return written;
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        if (!waited) share({ waiting: shared.waiting + 1 });
        waited = true;
        await reconnected();
      }
    }
  } finally {
    if (waited) share({ waiting: shared.waiting - 1 });
  }
}

export const nodePath = (id, rest = "") => `v1/nodes/${encodeURIComponent(id)}${rest}`;
