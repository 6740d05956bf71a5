// The left side: lists of nodes, search, progress and live accuracy.
import { read } from "./api.js";
import { useRead } from "./read.js";
import { address, go } from "./route.js";
import { shared, useShared } from "./store.js";
import { Bar, Failure, count, html, labelText, percent, several, useEffect, useRef, useState } from "./view.js";

const SHOWN = 30;

export const LISTS = {
  suggested: { name: "Suggested", about: "Labels that would help most" },
  doubtful: { name: "Doubtful", about: "The least certain predictions" },
  disagreement: { name: "Disagreement", about: "Labels that the rest of the graph doubts" },
  mine: { name: "Mine", about: "Your reserved nodes and your last labels" },
  search: { name: "Search", about: "Find nodes by id" },
};

/** Whether the server hands out the nodes of a list one by one, so that nobody gets the same. */
export const isLeased = (queue) => queue === "suggested" || queue === "doubtful";

const ofNode = (node) => ({
  id: node.id,
  detail: node.label === null ? labelText(node.prediction) : `labeled ${labelText(node.label)}`,
  amount: node.label === null ? percent(node.confidence) : "",
});

async function readList(queue, q, signal) {
  const options = { signal };
  if (queue === "doubtful") {
    const query = { state: "unlabeled", sort: "confidence", limit: SHOWN };
    return (await read("v1/nodes", query, options)).nodes.map(ofNode);
  }
  if (queue === "disagreement") {
    const { doubts } = await read("v1/audit", { limit: SHOWN }, options);
    return doubts.filter((doubt) => doubt.margin > 0).map((doubt) => ({
      id: doubt.node,
      detail: `${doubt.given} → ${doubt.suggested}`,
      amount: percent(doubt.p_suggested),
    }));
  }
  if (queue === "mine") {
    const [{ items }, { events }] = await Promise.all([
      read("v1/queue/mine", {}, options),
      read("v1/log", { actor: shared.me.name, kind: "label", limit: SHOWN }, options),
    ]);
    const leased = items.map((item) => ({ ...ofNode(item.node), amount: "leased" }));
    const seen = new Set(leased.map((item) => item.id));
    const labeled = events.filter((event) => !seen.has(event.node) && seen.add(event.node));
    return [...leased, ...labeled.map((event) => ({
      id: event.node,
      detail: event.in_force ? `labeled ${labelText(event.label)}` : "undone",
      amount: "",
    }))];
  }
  if (queue === "search") {
    if (!q) return [];
    return (await read("v1/nodes", { q, limit: SHOWN }, options)).nodes.map(ofNode);
  }
  const { suggestions } = await read("v1/suggest", { limit: SHOWN }, options);
  return suggestions.map((one) => ({
    id: one.node,
    detail: labelText(one.prediction),
    amount: percent(one.confidence),
    why: one.why,
  }));
}

export const useList = (queue, q) =>
  useRead((signal) => readList(queue, q, signal), JSON.stringify([queue, q]));

/** A search field that keeps its text while the address follows a little later. */
function Search({ queue, q }) {
  const [text, setText] = useState(q);
  const timer = useRef(0);
  useEffect(() => setText(q), [q]);
  const changed = (event) => {
    const value = event.target.value;
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const params = value ? { queue: "search", q: value } : { queue: "search" };
      go(address("label", null, params), { replace: queue === "search" });
    }, 200);
  };
  return html`<label class="search">
    <span class="hidden-text">Search nodes by id</span>
    <input id="search" class="field" type="search" placeholder="Find a node (F)" autocomplete="off"
      spellcheck=${false} value=${text} onInput=${changed} />
  </label>`;
}

function Figures() {
  const { model } = useShared();
  const accuracy = useRead((signal) => read("v1/accuracy", {}, { signal }), "accuracy");
  if (!model) return null;
  const figures = accuracy.value;
  const unbiased = figures?.random.count > 0;
  const shown = unbiased ? figures.random : figures?.all;
  const spread = shown?.error ? ` ± ${(100 * shown.error).toFixed(0)}` : "";
  return html`<section class="figures" aria-label="Progress and accuracy">
    <div>
      <p class="figure-line"><span>Labeled</span><b>${percent(model.labeled / model.num_nodes, 1)}</b></p>
      <${Bar} share=${model.labeled / model.num_nodes} />
      <p class="small soft">${count(model.labeled)} of ${count(model.num_nodes)}, ${count(model.labeled_here)} here</p>
    </div>
    <div>
      <p class="figure-line"><span>Live accuracy</span><b>${shown?.count ? `${percent(shown.accuracy)}${spread}` : "–"}</b></p>
      <p class="small soft">${!shown?.count
        ? "Each label first tests the model."
        : unbiased
          ? `on ${several(shown.count, "random node")}, without bias`
          : `on ${several(shown.count, "label")}; doubtful nodes come first`}</p>
    </div>
  </section>`;
}

export function Queue({ queue, q, node, list }) {
  const items = list.value;
  const [open, setOpen] = useState(false); // only matters on a phone, where the node comes first
  useEffect(() => setOpen(false), [node]);
  return html`<aside class=${open || queue === "search" ? "queue open" : "queue"} aria-label="Queue">
    <${Search} queue=${queue} q=${q} />
    <nav class="lists" aria-label="Lists">
      ${Object.entries(LISTS).map(([name, one]) => html`<a key=${name} title=${one.about}
        href=${address("label", null, { queue: name, q: name === "search" ? q : "" })}
        aria-current=${name === queue ? "true" : null}>${one.name}</a>`)}
    </nav>
    ${queue !== "search" && html`<button class="button plain compact list-toggle" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${open ? "Hide the list" : "List and progress"}</button>`}
    <div class="list">
    <${Failure} error=${list.error} retry=${list.again} />
    ${items?.length > 0 && html`<ul class="items" aria-label=${LISTS[queue].name}>
      ${items.map((item) => html`<li key=${item.id}>
        <a href=${address("label", item.id, { queue, q: queue === "search" ? q : "" })} title=${item.why || item.id}
          aria-current=${item.id === node ? "true" : null}>
          <span class="id">${item.id}</span><span class="amount">${item.amount}</span>
          <span class="detail">${item.detail}</span>
        </a></li>`)}
    </ul>`}
    ${items?.length === 0 && html`<p class="small soft">${queue === "search"
      ? q ? `No id contains “${q}”.` : "Type part of an id."
      : queue === "mine" ? "You have not labeled a node yet." : "This list is empty."}</p>`}
    </div>
    <${Figures} />
  </aside>`;
}
