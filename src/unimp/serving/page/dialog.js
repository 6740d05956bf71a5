// A modal dialog: the browser keeps the focus inside and closes it with Escape.
import { html, useEffect, useRef } from "./view.js";

/** action: the main button, if there is one; then the other button cancels. */
export function Dialog({ title, close, action, children }) {
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
    <div class="actions">${action}<button class="button" onClick=${() => element.current.close()}>${action ? "Cancel" : "Close"}</button></div>
  </dialog>`;
}
