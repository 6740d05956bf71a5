// The right side: why the model answers so, and the neighbors as links.
import { nodePath, read } from "./api.js";
import { GraphActions } from "./graph.js";
import { useRead } from "./read.js";
import { address } from "./route.js";
import { Failure, html, labelText, percent, several, useEffect, useState } from "./view.js";

const REST = 250; // milliseconds on a node before its explanation is computed
const SHOWN = 6;

const rests = (signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, REST);
  signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); });
});

function Effect({ value }) {
  if (value === null || value === undefined) return html`<span class="soft">–</span>`;
  const points = (100 * value).toFixed(1);
  return html`<span class=${value >= 0 ? "up" : "down"} title="percentage points">${value >= 0 ? "+" : "−"}${points.replace("-", "")}</span>`;
}

const Link = ({ id, queue }) => html`<a href=${address("label", id, { queue })}>${id}</a>`;

/** The picture is an image, so nothing in it can run, and its theme follows the page. */
function Picture({ id, version, about }) {
  const [failed, setFailed] = useState(false);
  const [shown, setShown] = useState("");
  const query = new URLSearchParams({ layout: "narrow", v: version, ...(about ? { about } : {}) });
  const source = `${nodePath(id, "/explanation.svg")}?${query}`;
  useEffect(() => { setFailed(false); setShown(source); }, [source]);
  if (failed || !shown) return null;
  return html`<figure class="picture"><img src=${shown} width="362" height="300" alt=${`The labels and edges behind the prediction for ${id}`} onError=${() => setFailed(true)} /></figure>`;
}

export function Why({ id, details, queue }) {
  const answer = details.value;
  const known = answer?.node ?? null;
  const key = JSON.stringify([id, known?.id ?? null, answer?.version ?? 0]);
  const why = useRead(async (signal) => {
    if (!known) return null;
    await rests(signal);
    return read(nodePath(id, "/explanation.json"), {}, { signal });
  }, key, () => false);
  const found = why.value?.explanation;
  return html`<aside class="why" aria-label="Why">
    <h2>${found ? `Why ${found.class}?` : "Why?"}</h2>
    <${Failure} error=${why.error} retry=${why.again} />
    ${!found && !why.error && html`<p class="soft small">Computing the explanation…</p>`}
    ${found && html`
      <dl class="columns">
        <dt>Probability</dt><dd><b>${percent(found.probability, 1)}</b></dd>
        ${found.without_labels !== null && html`<dt>Without any label</dt><dd>${percent(found.without_labels, 1)}</dd>`}
        <dt>Without its edges</dt><dd>${percent(found.without_edges, 1)}</dd>
      </dl>
      <${Picture} id=${id} version=${why.value.version} />
      ${found.labels.length > 0 && html`<section><h3>Labels behind it</h3><ul class="reasons">
        ${found.labels.slice(0, SHOWN).map((one) => html`<li class="reason" key=${one.node}>
          <span><${Link} id=${one.node} queue=${queue} /> <span class="soft">${labelText(one.label)}</span></span><${Effect} value=${one.effect} />
          <span class="detail">${one.hops ? `${several(one.hops, "hop")} away` : "its own label"}</span></li>`)}
      </ul></section>`}
      ${found.edges.length > 0 && html`<section><h3>Edges behind it</h3><ul class="reasons">
        ${found.edges.slice(0, SHOWN).map((one) => html`<li class="reason" key=${`${one.source} ${one.target}`}>
          <span><${Link} id=${one.source} queue=${queue} /> ${one.both_ways ? "↔" : "→"} <${Link} id=${one.target} queue=${queue} /></span><${Effect} value=${one.effect} /></li>`)}
      </ul></section>`}`}
    ${answer?.complete && html`<section><h3>${several(answer.num_neighbors, "neighbor")}</h3><ul class="reasons">
      ${answer.neighbors.slice(0, 30).map((one) => html`<li class="reason" key=${one.id}>
        <span><span class="soft" aria-label=${one.direction === "in" ? "from" : one.direction === "out" ? "to" : "both ways"}>${{ in: "←", out: "→", both: "↔" }[one.direction]}</span> <${Link} id=${one.id} queue=${queue} /></span>
        <span class=${one.label === null ? "soft" : ""}>${one.label === null ? `${labelText(one.prediction)}?` : labelText(one.label)}</span></li>`)}
      ${answer.num_neighbors > 30 && html`<li class="small soft">and ${answer.num_neighbors - 30} more</li>`}
    </ul><${GraphActions} key=${id} id=${id} /></section>`}
  </aside>`;
}
