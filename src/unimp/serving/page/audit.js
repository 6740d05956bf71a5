// The part "Audit": known labels that the rest of the graph doubts, to accept or keep.
import { may, undo } from "./answers.js";
import { read, write } from "./api.js";
import { useRead } from "./read.js";
import { address, go } from "./route.js";
import { shared } from "./store.js";
import { Empty, Failure, Key, count, html, percent, several, useEffect, useState } from "./view.js";

const PAGE = 20;

function Row({ doubt, done, undone }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [decision, setDecision] = useState(null);
  const decide = async (verb) => {
    if (busy || decision) return;
    setBusy(true);
    try {
      const written = await write("POST", `v1/audit/${encodeURIComponent(doubt.node)}/${verb}`, undefined, { seen: doubt.label_version });
      setDecision({ verb, version: written.first });
      setError(null);
      done();
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  const takeBack = async () => {
    try {
      await undo(decision.version, doubt.node);
      setDecision(null);
      undone();
    } catch (problem) {
      setError(problem);
    }
  };
  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    const rows = [...document.querySelectorAll(".audit-row")];
    const move = (by) => rows[rows.indexOf(event.currentTarget) + by]?.focus();
    if (key === "a") decide("accept");
    else if (key === "k") decide("keep");
    else if (key === "u" && decision) takeBack();
    else if (key === "arrowdown") move(1);
    else if (key === "arrowup") move(-1);
    else return;
    event.preventDefault();
  };
  const suggested = doubt.task ? `${doubt.task}: ${doubt.suggested}` : doubt.suggested;
  const given = doubt.task ? `${doubt.task}: ${doubt.given}` : doubt.given;
  return html`<li class="card audit-row" tabindex="0" onKeyDown=${keys}>
    <div><a href=${address("label", doubt.node, { queue: "disagreement" })}><b>${doubt.node}</b></a>
      <p class="versus"><span class="chip">${given}</span> ${percent(doubt.p_given)} <span aria-hidden="true">→</span><span class="hidden-text">the graph suggests</span> <span class="chip doubt">${suggested}</span> ${percent(doubt.p_suggested)}</p>
      <${Failure} error=${error} /></div>
    ${decision
      ? html`<div class="actions"><span class="chip mine">${decision.verb === "accept" ? `Now ${suggested}` : `Kept ${given}`}</span><button class="button plain compact" onClick=${takeBack}>Undo <${Key}>U<//></button></div>`
      : html`<div class="actions"><button class="button" disabled=${busy || !may("label")} onClick=${() => decide("accept")}>Accept ${doubt.suggested} <${Key}>A<//></button>
        <button class="button" disabled=${busy || !may("label")} onClick=${() => decide("keep")}>Keep ${doubt.given} <${Key}>K<//></button></div>`}
  </li>`;
}

export function AuditPart({ route }) {
  const offset = Math.max(0, Number(route.params.offset) || 0);
  // Rows stay where they are while a person decides; they are read again by the button only.
  const audit = useRead((signal) => read("v1/audit", { offset, limit: PAGE }, { signal, after: shared.written }), String(offset), (published) => !published);
  const [decided, setDecided] = useState(0);
  useEffect(() => setDecided(0), [offset]);
  const found = audit.value;
  const page = (to) => go(address("audit", null, { offset: to || "" }));
  return html`<main class="sheet" id="main">
    <header><div><h1 tabindex="-1">Audit</h1><p>Known labels that the rest of the graph doubts, the most doubtful first. Accept the suggestion, or keep the label and it is not asked again.</p></div>
      ${found && html`<p class="soft">${several(found.disagreements, "disagreement")} among ${several(found.total, "label")}</p>`}</header>
    <${Failure} error=${audit.error} retry=${audit.again} />
    ${audit.loading && html`<p class="loading">Checking every label against the rest of the graph…</p>`}
    ${found && !found.doubts.length && html`<${Empty} title="No label is in doubt">Every label fits the rest of the graph, or was kept.<//>`}
    ${found && html`<ul class="rows">${found.doubts.map((doubt) => html`<${Row} key=${`${doubt.node} ${doubt.task}`} doubt=${doubt}
      done=${() => setDecided(decided + 1)} undone=${() => setDecided(Math.max(0, decided - 1))} />`)}</ul>`}
    ${found && html`<nav class="actions" aria-label="Pages">
      ${decided > 0 && html`<button class="button main" onClick=${() => { setDecided(0); audit.again(); }}>Read the list again</button>`}
      ${offset > 0 && html`<button class="button" onClick=${() => page(Math.max(0, offset - PAGE))}>Previous</button>`}
      ${offset + PAGE < found.total && html`<button class="button" onClick=${() => page(offset + PAGE)}>Next</button>`}
      ${found.total > PAGE && html`<span class="soft small centered">${count(offset + 1)}–${count(Math.min(offset + PAGE, found.total))} of ${count(found.total)}</span>`}</nav>`}
  </main>`;
}
