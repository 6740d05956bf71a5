// The page of the live label service: connection, person, tabs and help. Each tab is a module.
import { ask, read, write } from "./api.js";
import { AuditPart } from "./audit.js";
import { LabelPart } from "./label.js";
import { connect, onPublished } from "./live.js";
import { LogPart } from "./log.js";
import { ModelPart } from "./model.js";
import { PeoplePart } from "./people.js";
import { PARTS, address, useRoute } from "./route.js";
import { share, shared, useShared } from "./store.js";
import { TablePart } from "./table.js";
import { Dialog } from "./dialog.js";
import { Empty, Failure, Key, html, render, several, useEffect, useState } from "./view.js";

const SHOW = { label: LabelPart, table: TablePart, audit: AuditPart, log: LogPart, model: ModelPart, people: PeoplePart };
const NAMES = { label: "Label", table: "Table", audit: "Audit", log: "Log", model: "Model", people: "People" };

const KEYS = [
  [["1", "–", "9"], "Choose the class with this number"],
  [["⏎"], "Agree with the prediction"],
  [["/"], "Search all classes"],
  [["S"], "Skip this node"],
  [["N"], "Write a note"],
  [["U"], "Undo your last answer"],
  [["J"], "Next node of the list"],
  [["K"], "Previous node of the list"],
  [["F"], "Find a node"],
  [["?"], "Show this help"],
];

async function load() {
  const me = await read("v1/me");
  share({ me, signedOut: false, model: await read("v1/model") });
  document.title = `${shared.model.name} · unimp`;
}

function nextTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const chosen = dark ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem("unimp-theme", chosen);
}

function Connection() {
  const { connection, version, published, model } = useShared();
  if (connection === "lost") return html`<span class="live is-lost" role="status">Offline</span>`;
  if (connection !== "live") return html`<span class="live">Connecting</span>`;
  const behind = version - published;
  const words = model?.engine === "down" ? "Engine is down" : published && behind > 0 ? `Updating, ${behind} behind` : "Live";
  return html`<span class="live is-live" title=${`Version ${version}. Predictions reflect version ${published || version}.`}>${words}</span>`;
}

function Top({ part, help }) {
  const { me, model } = useShared();
  return html`<header class="top">
    <a class="brand" href=${address("label")}><img src="page/icon.svg" alt="" /><span>unimp</span>${model && html`<span class="task" title=${model.name}>${model.name}</span>`}</a>
    <nav class="tabs" aria-label="Parts">
      ${PARTS.map((one) => html`<a key=${one} href=${address(one)} aria-current=${one === part ? "page" : null}>${NAMES[one]}</a>`)}
    </nav>
    <div class="top-end">
      <${Connection} />
      ${me && html`<span class="small soft who" title=${`Role: ${me.role}`}>${me.name}</span>`}
      <button class="icon-button" aria-label="Switch between light and dark" title="Light or dark" onClick=${nextTheme}>
        <svg viewBox="0 0 18 18" aria-hidden="true"><circle cx="9" cy="9" r="6.5" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M9 2.5a6.5 6.5 0 0 1 0 13z" fill="currentColor" /></svg>
      </button>
      <button class="icon-button" aria-label="Help" title="Help (?)" onClick=${help}>?</button>
    </div>
  </header>`;
}

function Help({ close }) {
  const { me } = useShared();
  const leave = async () => {
    await write("DELETE", "v1/session");
    share({ signedOut: true, me: null });
    close();
  };
  return html`<${Dialog} title="Keys" close=${close}>
    <dl class="keys">${KEYS.map(([keys, words]) => html`<dt key=${words}>${keys.map((key) => (key === "–" ? "–" : html`<kbd>${key}</kbd>`))}</dt><dd>${words}</dd>`)}</dl>
    <p class="soft small">A label is an input of the model: every prediction that depends on it is updated at once, without training. Your labels are on disk as soon as the page confirms them.</p>
    ${me && !me.local && html`<div><button class="button" onClick=${leave}>Sign out ${me.name}</button></div>`}
  <//>`;
}

function SignIn({ done }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await ask("v1/session", { token: token.trim() });
      await done();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<main><form class="card sign-in" onSubmit=${submit}>
    <div><h1>Sign in</h1><p class="soft">Use the token that an admin gave you.</p></div>
    <label class="stacked">Token<input class="field" type="password" autocomplete="current-password" value=${token} onInput=${(event) => setToken(event.target.value)} /></label>
    <${Failure} error=${error} />
    <button class="button main" disabled=${!token.trim()}>Sign in</button>
  </form></main>`;
}

function App() {
  const route = useRoute();
  const { me, signedOut, connection, waiting, model } = useShared();
  const [error, setError] = useState(null);
  const [help, setHelp] = useState(false);
  const start = async () => {
    try {
      await load();
      setError(null);
      connect();
    } catch (problem) {
      if (problem.status !== 401) setError(problem);
      if (problem.status === 0 || problem.status === 503) setTimeout(start, 1000);
      if (problem.status === 401 && signedOut) throw problem;
    }
  };
  useEffect(() => { start(); }, []);
  useEffect(() => {
    let timer = 0;
    const stop = onPublished(() => {
      clearTimeout(timer);
      timer = setTimeout(() => read("v1/model").then((value) => share({ model: value }), () => {}), 500);
    });
    return () => { stop(); clearTimeout(timer); };
  }, []);
  useEffect(() => {
    const keys = (event) => {
      if (event.key === "?" && !event.target.closest?.("input, textarea, select")) setHelp(true);
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  useEffect(() => {
    const leaving = (event) => { if (shared.waiting) event.preventDefault(); };
    addEventListener("beforeunload", leaving);
    return () => removeEventListener("beforeunload", leaving);
  }, []);

  if (signedOut) return html`<${SignIn} done=${start} />`;
  if (!model && error?.status === 503) return html`<main class="sheet"><${Empty} title="The model is loading">The page opens as soon as the model is ready. Message of the server: ${error.message}<//></main>`;
  if (!me || !model) return error ? html`<main class="sheet"><${Failure} error=${error} retry=${start} /></main>` : html`<p class="loading">Loading…</p>`;
  const Part = SHOW[route.part];
  const lost = connection === "lost";
  return html`<div class=${lost ? "with-banner" : ""}>
    <a class="skip-link" href=${location.hash || "#/label"} onClick=${(event) => { event.preventDefault(); document.querySelector("h1")?.focus(); }}>Skip to the content</a>
    <${Top} part=${route.part} help=${() => setHelp(true)} />
    ${lost && html`<div class="banner" role="alert"><b>Offline.</b><span>${waiting
      ? `The server does not answer. ${several(waiting, "answer")} not stored yet; keep this page open and it is sent again.`
      : "The server does not answer. You see the last answers; this page tries again by itself."}</span></div>`}
    <${Part} key=${route.part} route=${route} />
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
  </div>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
