// The part "Table": all nodes with filters, and labels for many of them at once.
import { may } from "./answers.js";
import { read, write } from "./api.js";
import { Dialog } from "./dialog.js";
import { useRead } from "./read.js";
import { address, go } from "./route.js";
import { share, shared, useShared } from "./store.js";
import { Bar, Empty, Failure, count, html, labelText, percent, several, useEffect, useLayoutEffect, useRef, useState } from "./view.js";

const PAGE = 50;
const MOST = 10000; // nodes that can be chosen at once
const READ = 1000; // nodes of one request
const FEW = 20; // labels that one request of a labeler may contain

/** Read the nodes that match, at most MOST. complete: all were read at one version, so none is missing. */
async function readMatching(filter, signal) {
  const found = new Map();
  const versions = new Set();
  let total = 1;
  for (let offset = 0; offset < total; offset += READ) {
    const part = await read("v1/nodes", { ...filter, offset, limit: READ }, { signal, after: shared.written });
    signal.throwIfAborted();
    total = Math.min(part.total, MOST);
    versions.add(`${part.generation} ${part.version}`);
    for (const node of part.nodes) found.set(node.id, node);
  }
  return { found, complete: versions.size === 1 };
}

function Filters({ params, change }) {
  const { classes } = shared.model;
  const [text, setText] = useState(params.q ?? "");
  const timer = useRef(0);
  useEffect(() => setText(params.q ?? ""), [params.q]);
  const typed = (event) => {
    const q = event.target.value;
    setText(q);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ q }), 200);
  };
  const choice = (name, title, options) => html`<label class="stacked">${title}
    <select class="field" value=${params[name] ?? ""} onChange=${(event) => change({ [name]: event.target.value })}>
      ${options.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}
    </select></label>`;
  const named = [["", "Any"], ...classes.map((one) => [one, one])];
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label class="stacked">Id contains<input class="field" type="search" value=${text} onInput=${typed} autocomplete="off" spellcheck=${false} /></label>
    ${choice("state", "State", [["", "All nodes"], ["unlabeled", "Without a label"], ["labeled", "With a label"]])}
    ${choice("prediction", "Predicted", named)}
    ${choice("label", "Label", named)}
    ${choice("sort", "Order", [["", "By id"], ["confidence", "Least certain first"], ["-confidence", "Most certain first"]])}
  </form>`;
}

function Confirm({ nodes, label, close, done }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const replaced = nodes.filter((node) => node.label !== null && labelText(node.label) !== labelText(label));
  const store = async () => {
    setBusy(true);
    try {
      // One source per action, so that all of it can be withdrawn at once.
      const source = `table of ${shared.me.name}, ${new Date().toISOString()}`.slice(0, 100);
      const labels = nodes.map((node) => ({ node: node.id, label }));
      done(await write("POST", "v1/labels", { labels, source }), source);
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${label === null ? `Remove ${several(nodes.length, "label")}?` : `Label ${several(nodes.length, "node")} ${labelText(label)}?`} close=${close}
    action=${html`<button class="button main" autofocus disabled=${busy} onClick=${store}>${label === null ? "Remove" : "Store"} ${several(nodes.length, "label")}</button>`}>
    <p>${nodes.slice(0, 8).map((node) => node.id).join(", ")}${nodes.length > 8 && ` and ${count(nodes.length - 8)} more`}</p>
    ${replaced.length > 0 && html`<p class="message doubt">${several(replaced.length, "node has", "nodes have")} another label now, which this replaces.</p>`}
    ${nodes.length > FEW && !may("many") && html`<p class="message doubt">More than ${FEW} labels at once need the role reviewer.</p>`}
    <${Failure} error=${error} />
  <//>`;
}

function Stored({ stored, forget, again }) {
  const [error, setError] = useState(null);
  const undo = async () => {
    try {
      await write("POST", "v1/undo", may("withdraw") ? { source: stored.source } : { version: stored.first, count: stored.count });
      forget();
      again();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<div class="message" role="status"><div class="notice"><p><b>${several(stored.count, "label")} stored.</b> All predictions that depend on them are updated.</p>
    <button class="button compact" onClick=${undo}>Undo all</button></div><${Failure} error=${error} /></div>`;
}

export function TablePart({ route }) {
  const { params } = route;
  const { model } = useShared();
  const offset = Math.max(0, Number(params.offset) || 0);
  const change = (values) => go(address("table", null, { ...params, offset: "", ...values }), { replace: true });
  const { q, state, prediction, label, sort } = params;
  const filter = { q, state, prediction, label, sort };
  const shown = JSON.stringify(filter);
  const page = useRead(
    (signal) => read("v1/nodes", { ...filter, offset, limit: PAGE }, { signal, after: shared.written }),
    JSON.stringify([shown, offset]));
  const [chosen, setChosen] = useState(new Map());
  const [choosing, setChoosing] = useState(null); // stops the request for all matching nodes
  const [matched, setMatched] = useState(null); // what this request found, and with which filter
  const [target, setTarget] = useState("");
  const [asking, setAsking] = useState(false);
  const [stored, setStored] = useState(null);
  const nodes = page.value?.nodes ?? [];
  const all = nodes.length > 0 && nodes.every((node) => chosen.has(node.id));
  const mark = (marked, on) => {
    const next = new Map(chosen);
    for (const node of marked) on ? next.set(node.id, node) : next.delete(node.id);
    setChosen(next);
    setMatched(null);
  };
  const clear = () => {
    setChosen(new Map());
    setMatched(null);
  };
  // Nodes of another filter than the one that is shown must not be chosen.
  useLayoutEffect(() => () => choosing?.abort(), [choosing, shown]);
  const busy = choosing !== null;
  const [failed, setFailed] = useState(null);
  const matching = Math.min(page.value?.total ?? 0, MOST);
  const chooseMatching = async () => {
    const stop = new AbortController();
    setChoosing(stop);
    setFailed(null);
    try {
      const { found, complete } = await readMatching(filter, stop.signal);
      setChosen((before) => new Map([...before, ...found]));
      setMatched({ shown, number: found.size, complete });
    } catch (problem) {
      if (!stop.signal.aborted) setFailed(problem);
    } finally {
      setChoosing(null);
    }
  };
  const labelFor = () => (target === "remove" ? null : model.several ? [target.slice(1)] : target.slice(1));
  const done = (written, source) => {
    setStored({ ...written, source });
    clear();
    setAsking(false);
    setTarget("");
    share({ notice: null });
    page.again();
  };
  return html`<main class="sheet" id="main">
    <header><div><h1 tabindex="-1">Table</h1><p>All nodes with their labels and predictions. Choose some to label them together.</p></div>
      ${page.value && html`<p class="soft">${several(page.value.total, "node")}</p>`}</header>
    <${Filters} params=${params} change=${change} />
    ${stored && html`<${Stored} stored=${stored} forget=${() => setStored(null)} again=${page.again} />`}
    <${Failure} error=${failed} /><${Failure} error=${page.error} retry=${page.again} />
    ${page.value && !nodes.length && html`<${Empty} title="No node matches">Change the filters above.<//>`}
    ${nodes.length > 0 && html`<div class="card scroll"><table class="stacked-rows">
      <thead><tr><th><input type="checkbox" aria-label="Choose all nodes of this page" checked=${all} disabled=${busy} onChange=${(event) => mark(nodes, event.target.checked)} /></th>
        <th>Node</th><th>Label</th><th>Predicted</th><th class="number">Probability</th></tr></thead>
      <tbody>${nodes.map((node) => html`<tr key=${node.id} class=${chosen.has(node.id) ? "chosen" : ""}>
        <td><input type="checkbox" aria-label=${`Choose ${node.id}`} checked=${chosen.has(node.id)} disabled=${busy} onChange=${(event) => mark([node], event.target.checked)} /></td>
        <td class="id"><a href=${address("label", node.id, { queue: q ? "search" : "", q })}>${node.id}</a></td>
        <td>${node.label === null ? html`<span class="soft">no label</span>` : html`<span class="chip mine">${labelText(node.label)}</span>`}</td>
        <td class=${node.observed ? "as-labeled" : ""}>${node.observed ? html`<span class="soft">as labeled</span>` : labelText(node.prediction)}</td>
        <td class="number end">${node.confidence === null ? null : html`<span>${percent(node.confidence)}</span><${Bar} share=${node.confidence} quiet=${true} />`}</td>
      </tr>`)}</tbody></table></div>`}
    ${page.value && page.value.total > PAGE && html`<nav class="actions" aria-label="Pages">
      <button class="button" disabled=${offset === 0} onClick=${() => change({ offset: Math.max(0, offset - PAGE) || "" })}>Previous</button>
      <button class="button" disabled=${offset + PAGE >= page.value.total} onClick=${() => change({ offset: offset + PAGE })}>Next</button>
      <span class="soft small centered">${count(offset + 1)}–${count(Math.min(offset + PAGE, page.value.total))} of ${count(page.value.total)}</span></nav>`}
    ${chosen.size > 0 && html`<div class="card bulk" role="region" aria-label="Label the chosen nodes">
      <b>${several(chosen.size, "node")} chosen</b>
      <select class="field" aria-label="Class" value=${target} onChange=${(event) => setTarget(event.target.value)}>
        <option value="">Choose a class</option>
        ${model.classes.map((name) => html`<option key=${name} value=${`=${name}`}>${name}</option>`)}
        <option value="remove">Remove the labels</option>
      </select>
      <button class="button main" disabled=${!target || busy || !may("label")} onClick=${() => setAsking(true)}>Continue</button>
      ${matched?.shown === shown && html`<span class="soft small centered" role="status">${several(matched.number, "matching node")} found.${!matched.complete && " Predictions changed meanwhile, so some may be missing. Choose again."}</span>`}
      ${all && page.value.total > nodes.length && !(matched?.shown === shown && matched.complete) && html`<button class="button" disabled=${busy} onClick=${chooseMatching}>Choose ${matching < page.value.total ? "the first" : "all"} ${count(matching)}</button>`}
      <button class="button plain" disabled=${busy} onClick=${clear}>Clear</button>
    </div>`}
    ${asking && html`<${Confirm} nodes=${[...chosen.values()]} label=${labelFor()} close=${() => setAsking(false)} done=${done} />`}
  </main>`;
}
