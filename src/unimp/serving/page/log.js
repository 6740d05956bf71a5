// The part "Log": every event in its order, with undo.
import { may, undo } from "./answers.js";
import { read } from "./api.js";
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

export function LogPart({ route }) {
  const { node, actor, kind, before } = route.params;
  const log = useRead((signal) => read("v1/log", { node, actor, kind, before, limit: PAGE }, { signal }),
    JSON.stringify([node, actor, kind, before]));
  const [error, setError] = useState(null);
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
      <tbody>${events.map((event) => html`<tr key=${event.version} class=${event.in_force ? "" : "undone"}>
        <td class="number meta">${event.version}</td>
        <td class="meta" title=${event.at}><span class="nowrap">${when(event.at)}</span></td>
        <td class="meta">${event.actor}${event.source && event.source !== event.actor && html`<div class="small soft">${event.source}</div>`}</td>
        <td class="id">${event.node == null ? "" : html`<a href=${address("label", event.node)}>${event.node}</a>`}</td>
        <td class="wide"><span class="what">${words(event)}</span>${event.predicted != null && html`<div class="small soft">predicted ${labelText(event.predicted)}, ${percent(event.probability)}</div>`}</td>
        <td class="end">${!event.in_force ? html`<span class="small soft">undone</span>` : undoable(event) && html`<button class="button compact" aria-label=${`Undo version ${event.version}`} onClick=${() => takeBack(event)}>Undo</button>`}</td>
      </tr>`)}</tbody></table></div>`}
    <nav class="actions" aria-label="Pages">
      ${before && html`<button class="button" onClick=${() => change({ before: "" })}>Newest</button>`}
      ${log.value?.next && html`<button class="button" onClick=${() => go(address("log", null, { node, actor, kind, before: log.value.next }))}>Older</button>`}
    </nav>
  </main>`;
}
