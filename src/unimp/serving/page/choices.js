// The classes that a person chooses from, and what a choice would change.
import { ask } from "./api.js";
import { shared } from "./store.js";
import { Bar, Failure, Key, html, labelText, percent, several, useEffect, useFocus, useMemo, useRef, useState } from "./view.js";

export const FEW = 5; // classes at first
const REST = 180; // milliseconds on a class before the question is asked
const MOST_FOUND = 50;

/** "If you choose vcs, 3 predictions change", for the class under the pointer or the focus. */
export function WhatIf({ node, label }) {
  const [answer, setAnswer] = useState(null);
  const cache = useRef(new Map());
  useEffect(() => {
    setAnswer(null);
    if (label === null || !shared.model?.takes_labels) return undefined;
    const key = JSON.stringify([node.id, label, shared.version]);
    if (cache.current.has(key)) {
      setAnswer(cache.current.get(key));
      return undefined;
    }
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await ask("v1/what-if", { labels: { [node.id]: label } }, { signal: stop.signal });
        cache.current.set(key, found);
        setAnswer(found);
      } catch (error) {
        if (!stop.signal.aborted) setAnswer({ error });
      }
    }, REST);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [node.id, JSON.stringify(label)]);
  if (!answer) return html`<p class="what-if" aria-live="polite"></p>`;
  if (answer.error) return html`<p class="what-if" aria-live="polite">${answer.error.message}</p>`;
  const turned = answer.effects.filter(({ before, after }) =>
    before.id !== node.id && labelText(before.prediction) !== labelText(after.prediction));
  const names = turned.slice(0, 3).map(({ after }) => `${after.id} becomes ${labelText(after.prediction)}`);
  const change = answer.changed === 1 ? "changes" : "change";
  return html`<p class="what-if" aria-live="polite">If you choose <b>${labelText(label)}</b>, ${answer.changed
    ? html`<b>${several(answer.changed, "prediction")} ${change}</b>${names.length ? `: ${names.join(", ")}${answer.changed > names.length ? " and more" : ""}` : ""}.`
    : answer.moved
      ? `no prediction changes; ${several(answer.moved, "probability", "probabilities")} ${answer.moved === 1 ? "moves" : "move"} a little.`
      : "no other prediction changes."}</p>`;
}

/** The most likely classes as buttons with the keys 1–9. */
export function Choices({ classes, current, chosen, several: isSet, disabled, choose, consider }) {
  const marks = Array.isArray(current) ? current : [current];
  return html`<ol class="choices" aria-label="Classes">
    ${classes.map((one, place) => {
      const name = one.class;
      const pressed = isSet ? chosen.includes(name) : marks.includes(name);
      return html`<li key=${name}><button class="choice" disabled=${disabled} aria-pressed=${String(pressed)}
        aria-keyshortcuts=${place < 9 ? String(place + 1) : null} onClick=${() => choose(name)}
        onMouseEnter=${() => consider(name)} onMouseLeave=${() => consider(null)}
        onFocus=${() => consider(name)} onBlur=${() => consider(null)}>
        <${Key}>${place < 9 ? place + 1 : "·"}<//>
        <span class="name">${name}${marks.includes(name) && html`<span class="mark">label now</span>`}</span>
        <span class="share">${percent(one.probability)}</span>
        <${Bar} share=${one.probability} quiet=${place > 0 && !pressed} />
      </button></li>`;
    })}
  </ol>`;
}

/** Search among all classes: arrows move, Enter chooses, Escape closes. */
export function Picker({ choose, close, consider }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const field = useRef(null);
  useFocus(field);
  const found = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const all = shared.model?.classes ?? [];
    const start = all.filter((name) => name.toLowerCase().startsWith(wanted));
    const inside = all.filter((name) => name.toLowerCase().includes(wanted) && !start.includes(name));
    return [...start, ...inside].slice(0, MOST_FOUND);
  }, [text]);
  const move = (place) => { setAt(place); consider(found[place] ?? null); };
  const keys = (event) => {
    if (event.key === "ArrowDown") move(Math.min(at + 1, found.length - 1));
    else if (event.key === "ArrowUp") move(Math.max(at - 1, 0));
    else if (event.key === "Enter" && found[at] !== undefined) choose(found[at]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="picker" onKeyDown=${keys}>
    <input ref=${field} id="class-search" class="field" type="text" role="combobox" aria-expanded="true" aria-controls="found-classes"
      aria-activedescendant=${found.length ? `class-${at}` : null} aria-label="Search classes"
      placeholder="Search all classes" autocomplete="off" spellcheck=${false} value=${text}
      onInput=${(event) => { setText(event.target.value); setAt(0); consider(null); }} />
    <div class="found" id="found-classes" role="listbox" aria-label="Classes">
      ${found.map((name, place) => html`<button key=${name} id=${`class-${place}`} class="option" role="option" tabindex="-1"
        aria-selected=${String(place === at)} onClick=${() => choose(name)} onMouseEnter=${() => move(place)}>${name}</button>`)}
      ${!found.length && html`<p class="small soft">No class contains “${text}”.</p>`}
    </div>
  </div>`;
}

export function Note({ save, close }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const field = useRef(null);
  useFocus(field);
  const submit = async (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    try {
      await save(text.trim());
    } catch (problem) {
      setError(problem);
    }
  };
  const keys = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    event.stopPropagation();
  };
  return html`<form class="picker" onSubmit=${submit} onKeyDown=${keys}>
    <label class="stacked">Note for everybody who opens this node
      <textarea ref=${field} class="field" maxlength="4000" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
    </label>
    <${Failure} error=${error} />
    <div class="actions"><button class="button main" disabled=${!text.trim()}>Save note <${Key}>Ctrl ⏎<//></button>
      <button type="button" class="button plain" onClick=${close}>Cancel</button></div>
  </form>`;
}
