// The state of the page in the hash of its address: #/part/node?name=value. The node is one
// encoded segment, so an id may contain any character.
import { useEffect, useState } from "./view.js";

export const PARTS = ["label", "table", "audit", "log", "model", "people"];

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a hand-written address with a single %
  }
}

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const [part, ...rest] = path.split("/");
  return {
    part: PARTS.includes(part) ? part : "label",
    node: rest.length && rest[0] ? decoded(rest.join("/")) : null,
    params: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function address(part, node = null, params = {}) {
  const kept = Object.entries(params).filter(([, value]) => value !== "" && value != null);
  const query = new URLSearchParams(kept).toString();
  return `#/${part}${node === null ? "" : `/${encodeURIComponent(node)}`}${query && `?${query}`}`;
}

/** Open an address; replace: without a new entry in the history, for filters that change fast. */
export function go(hash, { replace = false } = {}) {
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = hash;
  }
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
