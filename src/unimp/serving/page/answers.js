// What a person writes: labels, skips, notes and undo, with their conflicts and notices.
import { ask, nodePath, read, write } from "./api.js";
import { address, go, parse } from "./route.js";
import { share, shared } from "./store.js";
import { labelText, sameLabel } from "./view.js";

const MOST_ANSWERS = 200; // that can be undone with U, one after the other
const DOUBT = 0.5; // probability from which another prediction is worth a hint

export const may = (action) => Boolean(shared.me?.may.includes(action));

/** Show what was stored, with an undo. */
export function remember(written, node, words, extra = {}) {
  const answer = { version: written.first, node, words };
  share({ answers: [...shared.answers, answer].slice(-MOST_ANSWERS) });
  share({ notice: { words, version: written.version, node, undo: true, ...extra } });
}

/** What the rest of the graph says about a node: its prediction with its own label hidden. */
export async function restOfGraph(node, signal) {
  if (!node.observed) return node;
  const answer = await ask("v1/what-if", { labels: { [node.id]: null }, nodes: [node.id] }, { signal });
  return answer.effects.find((effect) => effect.after.id === node.id)?.after ?? null;
}

function doubtOf(label, rest) {
  if (!rest || Array.isArray(label) || sameLabel(label, rest.prediction)) return null;
  if ((rest.confidence ?? 0) < DOUBT) return null;
  return { prediction: rest.prediction, confidence: rest.confidence };
}

/** Store a label; `rest` is what the rest of the graph says. Returns whether it was stored. */
export async function giveLabel(node, label, { seen, rest = null }) {
  try {
    const written = label === null
      ? await write("DELETE", nodePath(node.id, "/label"), undefined, { seen })
      : await write("PUT", nodePath(node.id, "/label"), { label }, { seen });
    const words = label === null ? "label removed" : labelText(label);
    remember(written, node.id, words, { doubt: label === null ? null : doubtOf(label, rest) });
    return true;
  } catch (error) {
    if (error.status !== 412) throw error;
    // Both values in words: read what is stored now, and let the person decide.
    const { node: now, history } = await read(nodePath(node.id, "/details"));
    const by = history?.find((event) => event.version === now.label_version);
    share({ conflict: { node: now, by: by?.actor, mine: label, rest, words: error.message } });
    return false;
  }
}

export async function skip(node) {
  remember(await write("POST", nodePath(node.id, "/skip")), node.id, "skipped");
}

export async function note(node, text) {
  remember(await write("POST", nodePath(node.id, "/notes"), { text }), node.id, "note added");
}

/** Undo the last answer of this page and show its node. */
export async function undoLast() {
  const last = shared.answers.at(-1);
  if (!last) {
    share({ notice: { words: "There is nothing to undo on this page. The Log lists all events." } });
    return;
  }
  await undo(last.version, last.node);
  go(address("label", last.node, { queue: parse(location.hash).params.queue }));
}

export async function undo(version, node) {
  const written = await write("POST", "v1/undo", { version });
  share({
    answers: shared.answers.filter((answer) => answer.version !== version),
    notice: { words: "undone", node, version: written.version },
  });
}
