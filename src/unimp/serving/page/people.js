// The part "People": who may do what. Tokens are shown once.
import { may } from "./answers.js";
import { read, write } from "./api.js";
import { useRead } from "./read.js";
import { shared } from "./store.js";
import { Failure, html, useState } from "./view.js";

const ROLES = { reader: "reads everything", labeler: "gives labels", reviewer: "undoes labels of others, labels many nodes at once", admin: "manages people and models" };

function Token({ given, close }) {
  const [copied, setCopied] = useState(false);
  const copy = () => navigator.clipboard?.writeText(given.token).then(() => setCopied(true), () => {});
  return html`<div class="message" role="status"><p>The token of <b>${given.name}</b>. It is not shown again: pass it on now.</p>
    <p><code>${given.token}</code></p>
    <div class="actions"><button class="button compact" onClick=${copy}>${copied ? "Copied" : "Copy"}</button><button class="button plain compact" onClick=${close}>Done</button></div></div>`;
}

export function PeoplePart() {
  const people = useRead((signal) => (may("people") ? read("v1/people", {}, { signal }) : Promise.resolve(null)), "people", () => false);
  const [name, setName] = useState("");
  const [role, setRole] = useState("labeler");
  const [given, setGiven] = useState(null);
  const [error, setError] = useState(null);
  const act = async (action) => {
    try {
      const answer = await action();
      setError(null);
      if (answer?.token) setGiven(answer);
      people.again();
    } catch (problem) {
      setError(problem);
    }
  };
  // The server refuses changes to your own access, and to that of requests without a token.
  const fixed = (person) => person.name === shared.me.name || person.name === "local";
  const path = (person, rest) => `v1/people/${encodeURIComponent(person.name)}${rest}`;
  const add = (event) => {
    event.preventDefault();
    act(async () => {
      const answer = await write("POST", "v1/people", { name: name.trim(), role });
      setName("");
      return answer;
    });
  };
  return html`<main class="sheet" id="main">
    <header><div><h1 tabindex="-1">People</h1><p>You are ${shared.me.name}. Your role, ${shared.me.role}, ${ROLES[shared.me.role]}. Each role includes the ones before it: reader, labeler, reviewer, admin.</p></div></header>
    ${!may("people") && html`<p class="message">Adding people and changing roles needs the role admin.</p>`}
    ${given && html`<${Token} given=${given} close=${() => setGiven(null)} />`}
    <${Failure} error=${error} /><${Failure} error=${people.error} retry=${people.again} />
    ${people.value && html`<div class="card scroll"><table class="stacked-rows"><thead><tr><th>Name</th><th>Role</th><th>Access</th></tr></thead>
      <tbody>${people.value.people.map((person) => html`<tr key=${person.name} class=${person.revoked ? "undone" : ""}><td class="id"><span class="what">${person.name}</span></td>
        <td><select class="field narrow" aria-label=${`Role of ${person.name}`} value=${person.role} disabled=${fixed(person)}
          onChange=${(event) => act(() => write("PUT", path(person, "/role"), { role: event.target.value }))}>
          ${Object.keys(ROLES).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></td>
        <td>${fixed(person) ? html`<span class="small soft">${person.name === shared.me.name ? "you" : "this computer"}</span>` : html`<div class="actions">
          <button class="button compact" onClick=${() => act(() => write("POST", path(person, "/token")))}>New token</button>
          ${person.revoked ? html`<span class="small soft">revoked</span>` : html`<button class="button compact" onClick=${() => act(() => write("DELETE", path(person, "")))}>Revoke</button>`}</div>`}</td></tr>`)}</tbody></table></div>
      <form class="card panel" onSubmit=${add}><h2>Add a person or a program</h2>
        <div class="filters"><label class="stacked">Name<input class="field" required maxlength="100" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
          <label class="stacked">Role<select class="field" value=${role} onChange=${(event) => setRole(event.target.value)}>${Object.entries(ROLES).map(([one, words]) => html`<option key=${one} value=${one} title=${words}>${one}</option>`)}</select></label>
          <button class="button main" disabled=${!name.trim()}>Add</button></div>
        <p class="small soft">This role ${ROLES[role]}.</p></form>`}
  </main>`;
}
