// The part "Label": the queue, one node, and why. It decides which node comes next.
import { may } from "./answers.js";
import { ask, nodePath, read } from "./api.js";
import { NoNode, NodePanel } from "./node.js";
import { LISTS, Queue, isLeased, useList } from "./queue.js";
import { useRead } from "./read.js";
import { address, go, parse } from "./route.js";
import { shared } from "./store.js";
import { Empty, Failure, html, useEffect, useRef, useState } from "./view.js";
import { Why } from "./why.js";

const NOTHING = { columns: {}, neighbors: [], num_neighbors: 0, history: [] };

/**
 * The node first, with an answer that reflects what this page wrote, and then what takes the engine
 * longer: its columns, neighbors and history. A person can answer before these arrive.
 */
function useNode(id) {
  const live = (published) =>
    !published || published.nodes.includes(id) || published.changed > published.nodes.length;
  const reading = (rest, options) => (signal) =>
    (id === null ? Promise.resolve(null) : read(nodePath(id, rest), {}, { signal, ...options() }));
  const key = JSON.stringify(id);
  const node = useRead(reading("", () => ({ after: shared.written })), key, live);
  const details = useRead(reading("/details", () => ({})), key, live);
  const value = node.value && { ...NOTHING, ...details.value, ...node.value, complete: details.value !== null };
  const again = () => { node.again(); details.again(); };
  return { value, error: node.error, lateError: details.error, loading: node.loading, again };
}

export function LabelPart({ route }) {
  const queue = route.params.queue in LISTS ? route.params.queue : "suggested";
  const q = route.params.q ?? "";
  const id = route.node;
  const list = useList(queue, q);
  const [state, setState] = useState({}); // of the next node: {asking}, {none}, {error}
  const items = useRef(new Map()); // what the queue said about the nodes that it handed out
  const details = useNode(id);

  // Whoever went elsewhere while an answer was on its way stays there.
  const isHere = () => {
    const now = parse(location.hash);
    return now.part === "label" && now.node === id;
  };
  const open = (node, replace = false) =>
    isHere() && go(address("label", node, { queue, q: queue === "search" ? q : "" }), { replace });

  const nextItem = async (replace) => {
    if (!isHere()) return;
    setState({ asking: true });
    try {
      const { item } = await ask("v1/queue/next", { ranking: queue });
      if (item) items.current.set(item.node.id, item);
      setState(item ? {} : { none: true });
      if (item) open(item.node.id, replace);
      else if (id !== null && isHere()) go(address("label", null, { queue, done: "yes" }));
    } catch (error) {
      setState({ error });
    }
  };
  const step = (by) => {
    const nodes = (list.value ?? []).map((item) => item.id);
    const place = nodes.indexOf(id);
    const next = nodes[place < 0 ? 0 : place + by];
    if (next !== undefined && next !== id) open(next);
    else details.again();
  };
  const advance = () => (isLeased(queue) && may("claim") ? nextItem(false) : step(1));

  useEffect(() => {
    // Without a node in the address, the queue hands one out; a reader sees the first of the list.
    if (id !== null || queue === "search") return;
    if (isLeased(queue) && may("claim")) {
      if (!route.params.done) nextItem(true);
    } else if (list.value?.length) open(list.value[0].id, true);
  }, [id, queue, list.value === null]);

  const nothing = state.error
    ? html`<${Failure} error=${state.error} retry=${() => nextItem(true)} />`
    : queue === "search"
      ? html`<${Empty} title="Find a node">Type part of an id on the left, then choose a node.<//>`
      : state.none || route.params.done || list.value?.length === 0
        ? html`<${Empty} title="Nothing is left in this list">Choose another list, or look through the Table.<//>`
        : html`<p class="loading">Loading…</p>`;
  return html`<main class="workspace">
    <${Queue} queue=${queue} q=${q} node=${id} list=${list} />
    ${id === null
      ? html`<${NoNode}>${nothing}<//>`
      : html`<${NodePanel} id=${id} details=${details} item=${items.current.get(id)} advance=${advance} previous=${() => step(-1)} />`}
    ${id !== null && html`<${Why} id=${id} details=${details} queue=${queue} />`}
  </main>`;
}
