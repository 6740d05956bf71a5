// New nodes and edges: a form with the columns of the run. A problem is shown at its field.
import { may, remember } from "./answers.js";
import { read, write } from "./api.js";
import { Dialog } from "./dialog.js";
import { address, go } from "./route.js";
import { share, shared, useShared } from "./store.js";
import { Failure, html, useRef, useState } from "./view.js";

const REST = 150; // milliseconds after a key before ids are searched
const OFFERED = 8;
const ID = "node id"; // the key of the field that is not a column

/** The value of a field, or a problem with it in words: [value, problem]. */
function parsed(column, text) {
  const given = text.trim();
  if (column.kind === "vector") {
    const numbers = given.split(/[\s,;]+/).filter(Boolean).map(Number);
    if (numbers.some((one) => !Number.isFinite(one))) return [null, "Separate numbers with commas or spaces."];
    if (column.length !== null && numbers.length !== column.length) return [null, `Enter ${column.length} numbers; there are ${numbers.length} now.`];
    return [numbers, ""];
  }
  if (!given) return [null, ""];
  if (column.kind !== "numeric") return [given, ""];
  return Number.isFinite(Number(given)) ? [Number(given), ""] : [null, "This is not a number. Correct it, or leave it empty."];
}

/** {values, problems}: what the fields contain. */
function valuesOf(columns, texts) {
  const values = {};
  const problems = {};
  for (const column of columns) {
    const [value, problem] = parsed(column, texts[column.name] ?? "");
    values[column.name] = value;
    if (problem) problems[column.name] = problem;
  }
  return { values, problems };
}

/** The field that an answer of the server is about; null if it names none. */
function fieldOf(columns, words) {
  const named = columns.filter(({ name }) => words.includes(`'${name}'`) || words.includes(`column ${name}`));
  return named.length === 1 ? named[0].name : null;
}

function Field({ column, text, change, problem, prefix }) {
  const id = `${prefix}-${column.name}`;
  const about = { numeric: "Number", categorical: "Category", text: "Text", vector: column.length === null ? "Numbers" : `${column.length} numbers` }[column.kind];
  const common = { id, class: "field", value: text ?? "", placeholder: about, autocomplete: "off", "aria-invalid": problem ? "true" : null,
    "aria-describedby": problem ? `${id}-problem` : null, onInput: (event) => change(column.name, event.target.value) };
  return html`<div class="stacked"><label for=${id}>${column.name}</label>
    ${column.kind === "text" || column.kind === "vector" ? html`<textarea ...${common} rows="2"></textarea>`
      : html`<input ...${common} type="text" inputmode=${column.kind === "numeric" ? "decimal" : "text"} list=${column.choices?.length ? `${id}-choices` : null} />`}
    ${column.choices?.length > 0 && html`<datalist id=${`${id}-choices`}>${column.choices.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>`}
    ${problem && html`<p class="field-problem" id=${`${id}-problem`} role="alert">${problem}</p>`}</div>`;
}

/** A field for the id of a node that exists; it offers ids that contain the text. */
function NodeField({ label, text, change, problem, id }) {
  const [found, setFound] = useState([]);
  const timer = useRef(0);
  const typed = (event) => {
    const q = event.target.value;
    change(q);
    clearTimeout(timer.current);
    timer.current = setTimeout(async () => {
      if (!q) return;
      try {
        setFound((await read("v1/nodes", { q, limit: OFFERED })).nodes.map((node) => node.id));
      } catch { /* ids can still be typed */ }
    }, REST);
  };
  return html`<div class="stacked"><label for=${id}>${label}</label>
    <input id=${id} class="field" type="text" autocomplete="off" spellcheck=${false} list=${`${id}-ids`} value=${text} onInput=${typed}
      aria-invalid=${problem ? "true" : null} aria-describedby=${problem ? `${id}-problem` : null} />
    <datalist id=${`${id}-ids`}>${found.map((one) => html`<option key=${one} value=${one}></option>`)}</datalist>
    ${problem && html`<p class="field-problem" id=${`${id}-problem`} role="alert">${problem}</p>`}</div>`;
}

/** Texts, problems and the request of a form. `send` stores it; `columns` are its fields. */
function useForm(columns, send) {
  const [texts, setTexts] = useState({});
  const [problems, setProblems] = useState({});
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const change = (name, text) => {
    setTexts({ ...texts, [name]: text });
    setProblems({ ...problems, [name]: "" });
  };
  const refuse = (found) => {
    setProblems(found);
    setTimeout(() => document.querySelector('dialog [aria-invalid="true"]')?.focus());
  };
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    const { values, problems: found } = valuesOf(columns, texts);
    if (!(texts[ID] ?? "").trim()) found[ID] = "Enter an id.";
    if (Object.keys(found).length) { refuse(found); return; }
    setBusy(true);
    try {
      await send(texts[ID].trim(), values);
    } catch (problem) {
      const words = [problem.message, ...(problem.problems ?? [])].join(" ");
      const place = fieldOf(columns, words) ?? (words.includes(`'${texts[ID].trim()}'`) ? ID : null);
      if (place === null) setError(problem);
      else refuse({ [place]: problem.problems?.length === 1 ? problem.problems[0].replace(/^\d+: /, "") : problem.message });
      setBusy(false);
    }
  };
  return { texts, problems, error, busy, change, submit };
}

function AddNode({ id, close }) {
  const { model } = useShared();
  const columns = model.features;
  const [joined, setJoined] = useState(true);
  const needs = model.edge_features.length > 0; // an edge with values is added on its own
  const form = useForm(columns, async (node, values) => {
    const edges = joined && !model.near && !needs ? [{ source: id, target: node, values: {} }] : [];
    const written = await write("POST", "v1/nodes", { nodes: [{ id: node, values }], edges });
    close();
    share({ notice: { words: "node added", version: written.version, node } });
    go(address("label", node));
  });
  return html`<${Dialog} title="Add a node" close=${close}
    action=${html`<button class="button main" form="add-node" disabled=${form.busy}>Add the node</button>`}>
    <form id="add-node" class="rows" onSubmit=${form.submit} novalidate>
      <${Field} column=${{ name: "Id", kind: "text-line" }} prefix="node" text=${form.texts[ID]} change=${(_, text) => form.change(ID, text)} problem=${form.problems[ID]} />
      <div class="fields">${columns.map((column) => html`<${Field} key=${column.name} column=${column} prefix="column" text=${form.texts[column.name]} change=${form.change} problem=${form.problems[column.name]} />`)}</div>
      ${model.near ? html`<p class="small soft">Its edges come from its nearest neighbors.</p>`
        : needs ? html`<p class="small soft">Connect it to other nodes afterwards.</p>`
        : html`<label class="check"><input type="checkbox" checked=${joined} onChange=${(event) => setJoined(event.target.checked)} /> <span>Connect it to <b>${id}</b></span></label>`}
      <p class="small soft">Leave a field empty if its value is unknown; coordinates and vectors are required. The node gets a prediction at once. A node cannot be removed.</p>
      <${Failure} error=${form.error} />
    </form><//>`;
}

function Connect({ id, close }) {
  const { model } = useShared();
  const columns = model.edge_features;
  const form = useForm(columns, async (other, values) => {
    const written = await write("POST", "v1/edges", { edges: [{ source: id, target: other, values }] });
    close();
    remember(written, id, `edge to ${other} added`);
  });
  return html`<${Dialog} title=${model.directed ? `An edge from ${id}` : `Connect ${id}`} close=${close}
    action=${html`<button class="button main" form="connect" disabled=${form.busy}>Add the edge</button>`}>
    <form id="connect" class="rows" onSubmit=${form.submit} novalidate>
      <${NodeField} id="other-node" label=${model.directed ? "To the node" : "With the node"} text=${form.texts[ID] ?? ""} change=${(text) => form.change(ID, text)} problem=${form.problems[ID]} />
      ${columns.map((column) => html`<${Field} key=${column.name} column=${column} prefix="edge" text=${form.texts[column.name]} change=${form.change} problem=${form.problems[column.name]} />`)}
      <p class="small soft">Predictions that depend on the edge change at once. Press U to undo this.</p>
      <${Failure} error=${form.error} />
    </form><//>`;
}

/** The buttons below the neighbors of a node. */
export function GraphActions({ id }) {
  const [open, setOpen] = useState("");
  const close = () => setOpen("");
  if (!may("node")) return null;
  return html`<div class="actions">
    ${!shared.model.near && html`<button class="button compact" onClick=${() => setOpen("edge")}>Connect…</button>`}
    <button class="button compact" onClick=${() => setOpen("node")}>Add a node…</button>
    ${open === "edge" && html`<${Connect} id=${id} close=${close} />`}
    ${open === "node" && html`<${AddNode} id=${id} close=${close} />`}</div>`;
}
