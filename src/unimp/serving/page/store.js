// What several parts of the page share. A part subscribes with useShared and is drawn again when
// a value changes.
import { useEffect, useState } from "./view.js";

const listeners = new Set();

export const shared = {
  me: null, // the answer of GET v1/me
  signedOut: false, // the server asks for a token
  model: null, // the answer of GET v1/model
  connection: "connecting", // "live", "lost": events or requests do not reach the server
  version: 0, // the newest version that this page has seen
  written: 0, // the newest version that this page wrote: what it reads should reflect it
  published: 0, // the version of the published predictions
  waiting: 0, // writes that wait for the connection
  answers: [], // what this page wrote, the newest last, for undo
  notice: null, // the last answer or a piece of news, in words
  conflict: null, // a write that somebody was faster than
  job: null, // the last news about a training in the background
};

export function share(values) {
  Object.assign(shared, values);
  for (const listener of listeners) listener();
}

export function sawVersion(version) {
  if (version > shared.version) share({ version });
}

export function useShared() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((number) => number + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return shared;
}
