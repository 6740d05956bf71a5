// The part "Log": every event in its order, with undo.
import { may, undo } from "./answers.js";
import { read, write } from "./api.js";
import { Dialog } from "./dialog.js";
import { useRead } from "./read.js";
import { address, go } from "./route.js";
import { shared } from "./store.js";
import { Empty, Failure, html, labelText, percent, useState, when } from "./view.js";

const PAGE = 50;
const KINDS = ["label", "retract", "skip", "note", "node", "edge", "edge-removed", "undo", "withdraw", "model"];
const FINAL = ["node", "model"]; // events that cannot be undone

function words(event) {
  switch (event.kind) {
    case "label": return html`labeled <b>${labelText(event.label)}</b>`;
    case "retract": return "removed the label";
    case "skip": return "skipped";
    case "note": return html`noted “${event.text}”`;
    case "node": return "added the node";
    case "edge": return html`added an edge to <b>${event.target}</b>`;
    case "edge-removed": return html`removed the edge to <b>${event.target}</b>`;
    case "undo": return `undid version ${event.undoes}`;
    case "withdraw": return html`withdrew the source <b>${event.withdrawn}</b>`;
    case "model": return `switched to generation ${event.generation}${event.override ? ", which the gate had refused" : ""}`;
    default: return event.kind;
  }
}

/** Asks before all labels of a source are withdrawn. */
function Withdraw({ source, close, done }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const withdraw = async () => {
    setBusy(true);
    try {
      await write("POST", "v1/undo", { source });
      done();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="Withdraw all labels of this source?" close=${close}
    action=${html`<button class="button main" autofocus disabled=${busy} onClick=${withdraw}>Withdraw</button>`}>
    <p><b>${source}</b></p>
    <p>Each node gets the label that it would have without this source. This is one event, and it can be undone.</p>
    <${Failure} error=${error} />
  <//>`;
}

export function LogPart({ route }) {
  const { node, actor, kind, before } = route.params;
  const log = useRead((signal) => read("v1/log", { node, actor, kind, before, limit: PAGE }, { signal }),
    JSON.stringify([node, actor, kind, before]));
  const [error, setError] = useState(null);
  const [withdrawn, setWithdrawn] = useState(null); // the source that the dialog asks about
  const change = (values) => go(address("log", null, { node, actor, kind, ...values }), { replace: true });
  const takeBack = async (event) => {
    try {
      await undo(event.version, event.node ?? undefined);
      setError(null);
      log.again();
    } catch (problem) {
      setError(problem);
    }
  };
  const undoable = (event) => event.in_force && !FINAL.includes(event.kind) && may("undo") &&
    (event.actor === shared.me.name || may("undo-others"));
  const withdrawable = (event) => event.in_force && ["label", "retract"].includes(event.kind) && may("withdraw");
  const events = log.value?.events ?? [];
  return html`<main class="sheet" id="main">
    <header><div><h1 tabindex="-1">Log</h1><p>Every event in its order. Nothing is ever deleted: an undo is an event too, and it can be undone.</p></div></header>
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label class="stacked">Node<input class="field" type="search" value=${node ?? ""} onChange=${(event) => change({ node: event.target.value })} /></label>
      <label class="stacked">Person<input class="field" type="search" value=${actor ?? ""} onChange=${(event) => change({ actor: event.target.value })} /></label>
      <label class="stacked">Kind<select class="field" value=${kind ?? ""} onChange=${(event) => change({ kind: event.target.value })}>
        <option value="">All</option>${KINDS.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
    </form>
    <${Failure} error=${error} />
    <${Failure} error=${log.error} retry=${log.again} />
    ${log.value && !events.length && html`<${Empty} title="No events">Labels, notes and changes of the graph appear here.<//>`}
    ${events.length > 0 && html`<div class="card scroll"><table class="stacked-rows">
      <thead><tr><th class="number">Version</th><th>When</th><th>Who</th><th>Node</th><th>What</th><th><span class="hidden-text">Undo</span></th></tr></thead>
      <tbody>${events.map((event, place) => html`<tr key=${event.version} class=${event.in_force ? "" : "undone"}>
        <td class="number meta">${event.version}</td>
        <td class="meta" title=${event.at}><span class="nowrap">${when(event.at)}</span></td>
        <td class="meta">${event.actor}${event.source && event.source !== event.actor && html`<div class="small soft">${event.source}</div>
          ${withdrawable(event) && events[place - 1]?.source !== event.source && html`<button class="button plain compact under" aria-label=${`Withdraw the source ${event.source}`} onClick=${() => setWithdrawn(event.source)}>Withdraw source…</button>`}`}</td>
        <td class="id">${event.node == null ? "" : html`<a href=${address("label", event.node)}>${event.node}</a>`}</td>
        <td class="wide"><span class="what">${words(event)}</span>${event.predicted != null && html`<div class="small soft">predicted ${labelText(event.predicted)}, ${percent(event.probability)}</div>`}</td>
        <td class="end">${!event.in_force ? html`<span class="small soft">undone</span>` : undoable(event) && html`<button class="button compact" aria-label=${`Undo version ${event.version}`} onClick=${() => takeBack(event)}>Undo</button>`}</td>
      </tr>`)}</tbody></table></div>`}
    <nav class="actions" aria-label="Pages">
      ${before && html`<button class="button" onClick=${() => change({ before: "" })}>Newest</button>`}
      ${log.value?.next && html`<button class="button" onClick=${() => go(address("log", null, { node, actor, kind, before: log.value.next }))}>Older</button>`}
    </nav>
    ${withdrawn !== null && html`<${Withdraw} source=${withdrawn} close=${() => setWithdrawn(null)} done=${() => { setWithdrawn(null); log.again(); }} />`}
  </main>`;
}
