// Server-sent events: when predictions have changed, and whether the server can be reached.
import { sawVersion, share, shared } from "./store.js";

const FIRST_WAIT = 500, LONGEST_WAIT = 8000; // milliseconds between two attempts

let source = null;
let wait = FIRST_WAIT;
let timer = 0;

const listeners = new Set();

/** Call `listener({version, changed, nodes})` when predictions are new; null: read all again. */
export function onPublished(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(published) {
  for (const listener of listeners) listener(published);
}

function data(event) {
  try {
    return JSON.parse(event.data);
  } catch {
    return null;
  }
}

/** Whether the session has ended, as after a restart of the server. An EventSource does not report this. */
async function isSignedOut() {
  try {
    return (await fetch("v1/me", { credentials: "same-origin", cache: "no-store" })).status === 401;
  } catch {
    return false; // the server does not answer
  }
}

/** Connect, and connect again whenever the connection is lost. */
export function connect() {
  clearTimeout(timer);
  source?.close();
  source = new EventSource("v1/events");
  source.onopen = () => {
    const again = shared.connection === "lost";
    wait = FIRST_WAIT;
    share({ connection: "live" });
    if (again) tell(null); // events of the time in between were missed
  };
  source.onerror = async () => {
    // A browser stops for good after some errors, so the page makes every attempt itself.
    source.close();
    if (shared.signedOut) return; // signing in connects again
    share({ connection: "lost" });
    timer = setTimeout(connect, wait);
    wait = Math.min(LONGEST_WAIT, wait * 2);
    if (await isSignedOut()) {
      clearTimeout(timer);
      share({ signedOut: true });
    }
  };
  source.addEventListener("published", (event) => {
    const published = data(event);
    if (!published) return;
    sawVersion(published.acknowledged);
    share({ published: published.version });
    tell(published);
  });
  source.addEventListener("stored", (event) => sawVersion(data(event)?.acknowledged || 0));
  source.addEventListener("reset", () => tell(null));
  source.addEventListener("job", (event) => share({ job: data(event) }));
}

addEventListener("online", connect);
addEventListener("offline", () => share({ connection: "lost" }));
