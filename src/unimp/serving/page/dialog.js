// A modal dialog: the browser keeps the focus inside and closes it with Escape.
import { html, useEffect, useRef } from "./view.js";

export function Dialog({ title, close, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${close}
    onClick=${(event) => event.target === element.current && element.current.close()}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
    <div class="actions"><button class="button" onClick=${() => element.current.close()}>Close</button></div>
  </dialog>`;
}
