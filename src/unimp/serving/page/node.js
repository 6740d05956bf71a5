// The middle: one node, the classes to choose from, and what happened to the last answer.
import { giveLabel, may, note, restOfGraph, skip, undoLast } from "./answers.js";
import { Choices, FEW, Note, Picker, WhatIf } from "./choices.js";
import { useRead } from "./read.js";
import { address } from "./route.js";
import { share, useShared } from "./store.js";
import { Failure, Key, html, labelText, percent, sameLabel, several, useEffect, useFocus, useLayoutEffect, useRef, useState, when } from "./view.js";

const LONG = 220; // letters of a value that are shown at first

/** The last answer with undo, and a hint if the rest of the graph doubts it. */
function Notice() {
  const { notice } = useShared();
  if (!notice) return null;
  const { doubt } = notice;
  return html`<div class=${doubt ? "message doubt" : "message"} role="status">
    <div class="notice">
      <p>${notice.node !== undefined && html`<a href=${address("label", notice.node)}>${notice.node}</a>`}${notice.node !== undefined && ": "}<b>${notice.words}</b></p>
      ${notice.undo && html`<button class="button plain compact" onClick=${undoLast}>Undo <${Key}>U<//></button>`}
    </div>
    ${doubt && html`<p>The rest of the graph doubts it: without your label it says <b>${labelText(doubt.prediction)}</b> with ${percent(doubt.confidence)}.</p>`}
  </div>`;
}

/** Somebody was faster: both values in words, and the person decides. */
function Conflict({ conflict, done, answer }) {
  const first = useRef(null);
  useFocus(first);
  const theirs = labelText(conflict.node.label);
  const mine = conflict.mine === null ? "no label" : labelText(conflict.mine);
  return html`<div class="message doubt" role="alertdialog" aria-labelledby="conflict-title" id="conflict">
    <h2 id="conflict-title">Somebody was faster</h2>
    <p>${conflict.by || "Somebody"} gave this node <b>${theirs}</b> after you opened it. You chose <b>${mine}</b>. Your answer is not stored.</p>
    <p class="small soft">${conflict.words}</p>
    <div class="actions">
      <button ref=${first} class="button main" onClick=${done}>Keep ${theirs}</button>
      <button class="button" onClick=${answer}>Change it to ${mine}</button>
    </div>
  </div>`;
}

function Columns({ columns, id }) {
  const [open, setOpen] = useState(false);
  const entries = Object.entries(columns).filter(([, value]) => value !== id); // its id is the heading
  if (!entries.length) return null;
  // Numbered features without names tell a person nothing; they are shown only on demand.
  if (!open && entries.every(([name, value]) => /^[0-9]+$/.test(name) && typeof value === "number")) {
    return html`<div><button class="button plain compact under" aria-expanded="false" onClick=${() => setOpen(true)}>Show ${several(entries.length, "feature")} other than zero</button></div>`;
  }
  const text = (value) =>
    value === null || value === "" ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const long = entries.some(([, value]) => text(value).length > LONG) || entries.length > 12;
  return html`<div>
    <dl class="columns">
      ${entries.slice(0, open ? undefined : 12).map(([name, value]) => html`<dt title=${name}>${name}</dt><dd class=${open ? "" : "long"}>${text(value)}</dd>`)}
    </dl>
    ${long && html`<button class="button plain compact under" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${open ? "Show less" : "Show everything"}</button>`}
  </div>`;
}

/** What the neighbors are, for people who know a node by its place in the graph. */
function Surroundings({ answer }) {
  if (!answer.complete) return null;
  const { neighbors, num_neighbors: total } = answer;
  if (!total) return html`<p class="small soft">This node has no neighbors, so the prediction uses only its own values.</p>`;
  const counts = new Map();
  for (const one of neighbors) {
    if (one.label === null) continue;
    const names = Array.isArray(one.label) && one.label.length ? one.label : [labelText(one.label)];
    for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const known = neighbors.filter((one) => one.label !== null).length;
  const most = [...counts].sort((one, other) => other[1] - one[1]).slice(0, 3);
  return html`<dl class="columns"><dt>Neighbors</dt><dd>${several(total, "neighbor")}${total > neighbors.length ? `, of which ${neighbors.length} are shown` : ""}; ${known ? `${known} with a label: ` : "none with a label"}${most.map(([name, number], place) => html`${place > 0 && ", "}<span>${number} × <b>${name}</b></span>`)}</dd></dl>`;
}

function State({ node, history, drawn, why, remove }) {
  const by = history.find((event) => event.version === node.label_version);
  return html`<div class="node-meta">
    ${node.label === null
      ? html`<span class="chip">No label yet</span>`
      : html`<span class="chip mine">Label: ${labelText(node.label)}</span><span>${by ? `by ${by.actor}, ${when(by.at)}` : "from the run"}</span>
        ${remove && html`<button class="button plain compact" onClick=${remove}>Remove label</button>`}`}
    ${drawn === "random" && html`<span class="chip" title="One item in ten is random. Only these measure accuracy without bias.">Random check</span>`}
    ${why && html`<span>${why}</span>`}
  </div>`;
}

/** Whether a key belongs to what has the focus rather than to the node. */
function isTyping(target) {
  return target.closest?.("input, textarea, select, dialog, [contenteditable]") != null;
}

export function NodePanel({ id, details, item, advance, previous }) {
  const { model, conflict, me } = useShared();
  const [mode, setMode] = useState(""); // "", "classes", "note"
  const [more, setMore] = useState(false);
  const [considered, setConsidered] = useState(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const [chosen, setChosen] = useState(null); // for binary tasks: the names that are on
  const [seen, setSeen] = useState(null); // the label version when the person opened the node
  const heading = useRef(null);
  const answer = details.value;
  const node = answer?.node ?? null;

  const rest = useRead(async (signal) => (node ? restOfGraph(node, signal) : null),
    JSON.stringify([id, node?.observed, node?.label_version, answer?.version]), () => false);
  const view = node?.observed ? rest.value : node;

  useEffect(() => {
    setMode("");
    setMore(false);
    setConsidered(null);
    setError(null);
    setChosen(null);
    setSeen(null);
    share({ conflict: null });
  }, [id]);
  useEffect(() => {
    if (!node) return;
    setSeen((old) => (old === null ? node.label_version : old));
    heading.current?.focus({ preventScroll: true });
  }, [node?.id]);

  const isSet = model?.several ?? false;
  const on = chosen ?? (Array.isArray(node?.label) ? node.label : Array.isArray(view?.prediction) ? view.prediction : []);
  const toggled = (name) => (on.includes(name) ? on.filter((one) => one !== name) : [...on, name].sort());
  const classes = (view?.classes ?? []).slice(0, more ? 9 : FEW);
  const proposal = isSet ? on : view?.prediction ?? null;
  const writable = may("label");

  // One action at a time. An undo that comes while a label is still being sent follows it.
  const running = useRef(false);
  const later = useRef(null);
  const act = async (action, waits = false) => {
    if (running.current) {
      if (waits) later.current = action;
      return;
    }
    running.current = true;
    setBusy(true);
    setError(null);
    try {
      await action();
    } catch (problem) {
      setError(problem);
    } finally {
      running.current = false;
      setBusy(false);
      const next = later.current;
      later.current = null;
      if (next) act(next);
    }
  };
  const give = (label, version = seen ?? node.label_version) => act(async () => {
    if (await giveLabel(node, label, { seen: version, rest: view })) {
      setMode("");
      await advance();  // otherwise an undo could open its node before the next one is opened
    }
  });
  const choose = (name) => {
    if (isSet) setChosen(toggled(name));
    else give(name);
    if (isSet) setMode("");
  };
  const agree = () => proposal !== null && give(proposal);
  const skipIt = () => act(async () => { await skip(node); await advance(); });
  const closeMode = () => { setMode(""); setConsidered(null); heading.current?.focus(); };
  const decided = () => { share({ conflict: null }); advance(); };

  // Before the next paint, so that a key which follows at once belongs to what was chosen.
  useLayoutEffect(() => {
    const keys = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (event.key === "Escape" && mode) { closeMode(); return; }
      if (isTyping(event.target)) return;
      const key = event.key.toLowerCase();
      if (key === "u") act(undoLast, true);
      else if (key === "j" || key === "k") (key === "j" ? advance : previous)();
      else if (key === "f") document.getElementById("search")?.focus();
      else if (!node || conflict || busy) return;
      else if (key === "enter") {
        // Enter on a button or a link belongs to that control.
        if (event.target.closest("button, a, summary") || !writable || event.repeat) return;
        agree();
      } else if (!writable) return;
      else if (/^[1-9]$/.test(key)) {
        const one = classes[Number(key) - 1];
        if (one === undefined || event.repeat) return;
        choose(one.class);
      } else if (key === "/") setMode("classes");
      else if (key === "n") setMode("note");
      else if (key === "s") { if (!event.repeat) skipIt(); }
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });

  if (!node) {
    return html`<section class="node" aria-label="Node"><div class="node-inner">
      <${Notice} />
      ${details.error
        ? html`<${Failure} error=${details.error} retry=${details.again} />`
        : html`<p class="loading">Loading…</p>`}
    </div></section>`;
  }
  const changedMeanwhile = seen !== null && seen !== node.label_version && !conflict;
  const label = considered === null ? null : isSet ? toggled(considered) : considered;
  return html`<section class="node" aria-label="Node" id="main"><div class="node-inner">
    <${Notice} />
    <header class="node-head">
      <h1 ref=${heading} tabindex="-1">${node.id}</h1>
      <${State} node=${node} history=${answer.history} drawn=${item?.drawn} why=${item?.why} remove=${writable && !busy ? () => give(null) : null} />
    </header>
    ${changedMeanwhile && html`<div class="message doubt" role="status"><p>The label of this node changed while you had it open. It is <b>${labelText(node.label)}</b> now.</p></div>`}
    ${!answer.complete && !details.lateError && html`<p class="soft small">Loading its columns…</p>`}
    <${Failure} error=${details.lateError} retry=${details.again} />
    <${Columns} key=${node.id} columns=${answer.columns} id=${node.id} />
    <${Surroundings} answer=${answer} />
    ${conflict && conflict.node.id === node.id && html`<${Conflict} conflict=${conflict} done=${decided}
      answer=${() => { const { mine, node: now } = conflict; share({ conflict: null }); setSeen(now.label_version); give(mine, now.label_version); }} />`}
    <${Failure} error=${error} />
    <div>
      <h2>${node.observed ? "Without its label, the rest of the graph says" : isSet ? "Which of these apply?" : "What is it?"}</h2>
      ${rest.error && html`<${Failure} error=${rest.error} retry=${rest.again} />`}
    </div>
    ${mode === "classes" ? html`<${Picker} choose=${choose} consider=${setConsidered} close=${closeMode} />`
      : mode === "note" ? html`<${Note} close=${closeMode} save=${async (text) => { await note(node, text); closeMode(); details.again(); }} />`
      : html`<${Choices} classes=${classes} current=${node.label} chosen=${on} several=${isSet} disabled=${!writable || busy}
      choose=${choose} consider=${setConsidered} />`}
    ${!mode && !more && (view?.classes.length ?? 0) > FEW && html`<div><button class="button plain compact under" onClick=${() => setMore(true)}>Show ${view.classes.length - FEW} more</button></div>`}
    ${!writable && me && html`<p class="message">You can read everything here. Giving labels needs the role labeler.</p>`}
    <div class="answer-bar"><${WhatIf} node=${node} label=${label} /><div class="actions">
      <button class="button main" disabled=${!writable || busy || proposal === null} onClick=${agree}><span class="cut">${isSet
        ? `Save: ${labelText(on)}` : sameLabel(proposal, node.label) ? `Confirm ${labelText(proposal)}` : `Agree: ${labelText(proposal)}`}</span> <${Key}>⏎<//></button>
      <button class="button" disabled=${!writable} aria-expanded=${String(mode === "classes")} onClick=${() => setMode("classes")}>Other class <${Key}>/<//></button>
      <button class="button" disabled=${!writable || busy} onClick=${skipIt}>Skip <${Key}>S<//></button>
      <button class="button" disabled=${!writable} onClick=${() => setMode("note")}>Note <${Key}>N<//></button>
    </div></div>
    <${History} events=${answer.history} />
  </div></section>`;
}

const WORDS = { label: "labeled", retract: "removed the label", skip: "skipped", note: "noted", node: "added the node", undo: "undid", edge: "added an edge", "edge-removed": "removed an edge" };

function History({ events }) {
  if (!events.length) return null;
  return html`<section><h3>History</h3><ul class="reasons">
    ${events.slice(0, 12).map((event) => html`<li class="reason" key=${event.version}>
      <span>${event.actor} ${WORDS[event.kind] ?? event.kind} ${event.kind === "label" && html`<b>${labelText(event.label)}</b>`}${event.kind === "undo" && `version ${event.undoes}`}${event.kind === "note" && html`“${event.text}”`}${!event.in_force && " (undone)"}</span>
      <span class="small soft">${when(event.at)}</span>
      ${event.predicted != null && html`<span class="detail">The model predicted ${labelText(event.predicted)}, ${percent(event.probability)}.</span>`}
    </li>`)}
  </ul></section>`;
}

/** The middle while there is no node. */
export const NoNode = ({ children }) => html`<section class="node" id="main"><div class="node-inner"><${Notice} />${children}</div></section>`;
