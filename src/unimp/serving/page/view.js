// What every part of the page draws with. htm and Preact only create text nodes from values, so an
// id or a class name with markup is shown as it is. Nothing on this page sets innerHTML.
import { createElement, render } from "./vendor/preact.js";
import { useLayoutEffect } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export { render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(createElement);

/** Focus an element before it is drawn, so that a key which follows at once reaches it. */
export const useFocus = (ref) => useLayoutEffect(() => ref.current?.focus(), []);

export const count = (number) => Number(number).toLocaleString("en-US");

/** "3 predictions", "1 prediction". */
export const several = (number, one, many = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : many}`;

export function percent(share, digits = 0) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = 100 * share;
  // Nobody should read 100 % where the model leaves some doubt, or 0 % where there is a chance.
  if (digits === 0 && value > 99.5 && value < 100) return "> 99 %";
  if (digits === 0 && value < 0.5 && value > 0) return "< 1 %";
  return `${value.toFixed(digits)} %`;
}

/** A label in words: a class, or for binary tasks all names that are 1. */
export function labelText(label) {
  if (label === null || label === undefined) return "no label";
  if (Array.isArray(label)) return label.length ? label.join(", ") : "none of the classes";
  return String(label);
}

export const sameLabel = (one, other) => JSON.stringify(one) === JSON.stringify(other);

export function when(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  const seconds = (Date.now() - at.getTime()) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h ago`;
  return at.toLocaleDateString("en-US", { year: "numeric", month: "short", day: "numeric" });
}

export const Key = ({ children }) => html`<kbd aria-hidden="true">${children}</kbd>`;

export const Bar = ({ share, quiet }) =>
  html`<span class=${quiet ? "bar quiet" : "bar"} aria-hidden="true"
    ><span style=${{ width: `${Math.max(0, Math.min(1, share || 0)) * 100}%` }}></span
  ></span>`;

/** An error in the words of the server, with its list of problems where it has one. */
export function Failure({ error, retry }) {
  if (!error) return null;
  return html`<div class="message bad" role="alert">
    <p>${error.message}</p>
    ${error.problems?.length > 0 &&
    html`<ul>
      ${error.problems.slice(0, 10).map((one) => html`<li>${one}</li>`)}
      ${error.problems.length > 10 && html`<li>and ${count(error.problems.length - 10)} more</li>`}
    </ul>`}
    ${retry && html`<button class="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

export const Empty = ({ title, children }) =>
  html`<div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>`;
