// A part that shows what it read, and reads it again when predictions change.
import { onPublished } from "./live.js";
import { useEffect, useRef, useState } from "./view.js";

const QUIET = 400; // milliseconds; many labels in a row cause one read

/**
 * {value, error, loading, again}: the result of `reading(signal)`. key: what it depends on.
 * live: whether to read again after a change, given what was published (null: everything).
 */
export function useRead(reading, key, live = () => true) {
  const [state, setState] = useState({ key: null, value: null, error: null });
  const latest = useRef({});
  latest.current = { reading, live };
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    latest.current.reading(stop.signal).then(
      (value) => setState({ key, value, error: null }),
      (error) => {
        if (stop.signal.aborted) return;
        // A page that was read stays visible while the server cannot be reached.
        setState((old) => ({ key, value: old.key === key ? old.value : null, error }));
      });
    return () => stop.abort();
  }, [key, round]);
  useEffect(() => {
    let timer = 0;
    const stop = onPublished((published) => {
      if (!latest.current.live(published)) return;
      clearTimeout(timer);
      timer = setTimeout(() => setRound((number) => number + 1), QUIET);
    });
    return () => { stop(); clearTimeout(timer); };
  }, []);
  const current = state.key === key;
  return {
    value: current ? state.value : null,
    error: current ? state.error : null,
    loading: !current,
    again: () => setRound((number) => number + 1),
  };
}
