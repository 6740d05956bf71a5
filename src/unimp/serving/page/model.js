// The part "Model": what answers now, how well, and training on the labels given so far.
import { may } from "./answers.js";
import { read, write } from "./api.js";
import { Dialog } from "./dialog.js";
import { useRead } from "./read.js";
import { share, useShared } from "./store.js";
import { Bar, Failure, count, html, percent, several, useEffect, useState, when } from "./view.js";

const STATES = { training: "Training", loading: "Loading", ready: "Ready to activate", active: "Active", refused: "Refused by the gate", failed: "Failed", stopped: "Stopped" };

const Tile = ({ value, words }) => html`<div class="card tile"><b>${value}</b><span>${words}</span></div>`;

function Calibration({ figures }) {
  if (!figures.count) return html`<p class="soft">No label has tested the model yet. Each label that you give does.</p>`;
  return html`<table><thead><tr><th>The model said</th><th class="number">Labels</th><th>It was right</th></tr></thead>
    <tbody>${figures.bins.map((bin) => html`<tr key=${bin.low}><td>${percent(bin.low)} – ${percent(bin.high)}</td><td class="number">${count(bin.count)}</td>
      <td>${percent(bin.accuracy)}<${Bar} share=${bin.accuracy} /></td></tr>`)}</tbody></table>`;
}

function Accuracy() {
  const accuracy = useRead((signal) => read("v1/accuracy", {}, { signal }), "accuracy");
  const found = accuracy.value;
  const line = (figures) => (figures.count ? `${percent(figures.accuracy, 1)}${figures.error ? ` ± ${(100 * figures.error).toFixed(1)}` : ""}` : "–");
  return html`<section class="card panel"><h2>Live accuracy</h2><${Failure} error=${accuracy.error} retry=${accuracy.again} />
    ${found && html`<dl class="columns"><dt>Random items</dt><dd><b>${line(found.random)}</b> <span class="soft">on ${several(found.random.count, "label")}, without bias</span></dd>
      <dt>All labels</dt><dd><b>${line(found.all)}</b> <span class="soft">on ${several(found.all.count, "label")}; doubtful nodes come first</span></dd></dl>
      <${Calibration} figures=${found.random.count ? found.random : found.all} />`}
  </section>`;
}

function Generations({ generations, again }) {
  const [asked, setAsked] = useState(null);
  const [error, setError] = useState(null);
  const active = generations.find((one) => one.active)?.generation ?? 0;
  const refused = error?.kind === "refused"; // by the gate; an admin may override it
  const [busy, setBusy] = useState(false); // loading a model takes time
  const activate = async () => {
    setBusy(true);
    try {
      await write("POST", `v1/generations/${asked.generation}/activate`, { override: refused });
      setAsked(null);
      setError(null);
      again();
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  return html`<section class="card panel"><h2>Generations</h2>
    <div class="scroll"><table class="stacked-rows"><thead><tr><th class="number">No.</th><th>Run</th><th>Scores</th><th></th></tr></thead>
      <tbody>${generations.map((one) => html`<tr key=${one.generation}><td class="number">${one.generation}</td><td class="id">${one.run}<div class="small soft">${when(one.created)}</div></td>
        <td>${Object.entries(one.scores).map(([name, score]) => html`<div class="nowrap">${name} ${percent(score, 1)}</div>`)}</td>
        <td class="end">${one.active ? html`<span class="chip mine">Active</span>` : html`<button class="button compact" disabled=${!may("model")} onClick=${() => setAsked(one)}>${one.generation < active ? "Roll back" : "Activate"}</button>`}</td></tr>`)}</tbody></table></div>
    ${generations.length < 2 && html`<p class="soft small">The run itself is generation 0. A training adds the next one.</p>`}
    ${asked && html`<${Dialog} title=${`Answer with generation ${asked.generation}?`} close=${() => { setAsked(null); setError(null); }}
      action=${html`<button class="button main" disabled=${busy} onClick=${activate}>${busy ? "Switching…" : refused ? "Switch anyway" : `Switch to generation ${asked.generation}`}</button>`}>
      <p>All predictions will come from ${asked.run}. Labels stay as they are. You can switch back.</p><${Failure} error=${error} /><//>`}
  </section>`;
}

function Training({ changed }) {
  const { job } = useShared();
  // What the server offers is written in its description of the API, so nothing is asked in vain.
  const jobs = useRead(async (signal) => {
    const { paths } = await read("openapi.json", {}, { signal });
    return "/v1/retrain" in paths ? read("v1/jobs", {}, { signal }) : null;
  }, "jobs");
  const [asking, setAsking] = useState(false);
  const [activate, setActivate] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => { if (job) { jobs.again(); changed(); } }, [job]); // a new generation is in the model's list
  const start = async () => {
    try {
      await write("POST", "v1/retrain", { activate });
      setAsking(false);
      setError(null);
      jobs.again();
    } catch (problem) {
      setError(problem);
    }
  };
  const resume = (id) => write("POST", `v1/jobs/${id}/resume`).then(jobs.again, setError);
  const missing = !jobs.loading && !jobs.error && jobs.value === null;
  return html`<section class="card panel"><h2>Training in the background</h2>
    <p class="soft">A training on all labels given so far builds the next generation. The service keeps answering meanwhile, and a gate refuses a model that is worse.</p>
    ${missing ? html`<p class="message">This server does not offer training yet. Export the labels, train with <code>unimp train</code>, and serve the new run.</p>`
      : html`<${Failure} error=${jobs.error} retry=${jobs.again} />
        ${jobs.value?.jobs.map((one) => html`<div key=${one.id}><p><b>Generation ${one.generation}</b> <span class="chip">${STATES[one.state] ?? one.state}</span></p>
          <p class="small soft">${one.detail} Labels up to version ${one.version}, started ${when(one.started)}.</p>
          ${one.gate.map((check) => html`<p class="small">${check.passed ? "✓" : "✗"} ${check.name}: ${check.detail}</p>`)}
          ${["stopped", "failed"].includes(one.state) && may("model") && html`<button class="button compact" onClick=${() => resume(one.id)}>Resume</button>`}</div>`)}
        <div class="actions"><button class="button" disabled=${!may("model") || !jobs.value} onClick=${() => setAsking(true)}>Train on the labels so far</button></div>
        ${!may("model") && html`<p class="small soft">Training needs the role admin.</p>`}`}
    ${asking && html`<${Dialog} title="Train the next generation?" close=${() => { setAsking(false); setError(null); }}
      action=${html`<button class="button main" onClick=${start}>Start the training</button>`}>
      <p>It uses the recipe of the run and all labels given so far, at low priority.</p>
      <label class="check"><input type="checkbox" checked=${activate} onChange=${(event) => setActivate(event.target.checked)} /> Activate it as soon as the gate accepts it</label>
      <${Failure} error=${error} /><//>`}
  </section>`;
}

export function ModelPart() {
  const { model } = useShared();
  const again = () => read("v1/model").then((value) => share({ model: value }), () => {});
  const scores = Object.entries(model.scores);
  return html`<main class="sheet" id="main">
    <header><div><h1 tabindex="-1">Model</h1><p>${model.members.length ? `Ensemble of ${model.members.map((one) => one.name).join(", ")}` : model.model} on ${model.name}, generation ${model.generation}. ${model.takes_labels ? "Labels are inputs of this model, so a new label changes predictions at once." : "Labels are not inputs of this model, so new labels change predictions only after training."}</p></div></header>
    <div class="tiles">
      <${Tile} value=${count(model.num_nodes)} words="nodes" /><${Tile} value=${count(model.num_edges)} words=${model.directed ? "directed edges" : "edges"} />
      <${Tile} value=${count(model.classes.length)} words="classes" /><${Tile} value=${count(model.labeled)} words=${`labels, ${count(model.labeled_here)} given here`} />
      <${Tile} value=${count(model.parameters)} words="parameters" />
    </div>
    <div class="two">
      <${Generations} generations=${model.generations} again=${again} />
      <${Training} changed=${again} />
      <${Accuracy} />
      <section class="card panel"><h2>Scores of the run</h2>
        ${scores.length ? html`<table><thead><tr><th>Protocol</th><th>Set</th><th class="number">${model.metric}</th></tr></thead><tbody>
          ${scores.flatMap(([protocol, sets]) => Object.entries(sets).map(([set, score]) => html`<tr key=${`${protocol} ${set}`}><td>${protocol}</td><td>${set}</td><td class="number">${percent(score, 2)}</td></tr>`))}</tbody></table>` : html`<p class="soft">The run has no scores.</p>`}
        <p class="small soft">Export: <a href="v1/export/labels.csv">labels</a>, <a href="v1/export/predictions.csv">predictions</a>, <a href="v1/export/log.jsonl">log</a></p>
      </section>
    </div>
  </main>`;
}
