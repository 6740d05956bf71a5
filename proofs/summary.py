"""Write the counts of the proofs into the pages that quote them.

python proofs/summary.py      → docs/reliability.md, docs/resuming.md
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from unimp.data.files import write_atomically

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
Result = dict[str, Any]


def read(name: str) -> Result:
    result: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def killed(result: Result) -> str:
    states = Counter(entry["command"] for entry in result["moments"])
    train, regimes = states.pop("train", 0), len(result["by_regime"])
    parts = [f"{train:,} kills of training in {regimes} regimes"] if train else []
    parts.append(f"{states.total():,} of {', '.join(sorted(states))}")
    ended = f"{result['equal']:,} of {result['kills']:,} ended like an uninterrupted command"
    return f"{ended}: {', '.join(parts)}"


def tables(result: Result) -> str:
    return (
        f"{result['refused_as_expected']:,} of {result['cases']:,} refused, "
        f"{result['different_messages']:,} different messages"
    )


def tampered(result: Result) -> str:
    found = result["outcomes"]
    return (
        f"{result['cases']:,} cases: {found['refused']:,} refused, {found['right']:,} answered "
        f"exactly as before, {found['another valid run']:,} with new hashes and other valid values"
    )


def outputs(result: Result) -> str:
    found = result["outcomes"]
    return (
        f"{result['cases']:,} cases: {found['refused']:,} refused, {found['written']:,} written "
        "where that is allowed, no other file changed"
    )


def misuse(result: Result) -> str:
    return (
        f"{result['cases']:,} calls of {len(result['by_function'])} functions: "
        f"{result['refused_with_a_clear_message']:,} refused, {result['valid_and_answered']:,} "
        f"valid and answered, {result['failed']} failed"
    )


def pages(result: Result) -> str:
    requests = sum(page["requests"] for page in result["pages"].values())
    scripts = sum(page["scripts_run"] for page in result["pages"].values())
    return (
        f"{result['quiet_pages']} of {len(result['pages'])} pages, {result['payloads']} kinds of "
        f"markup, Chromium {result['chromium'].split('.')[0]}: {scripts} scripts ran, {requests} "
        "requests were sent"
    )


ROWS = {
    "kill": ("commands killed at random moments and while they write, then repeated", killed),
    "kill_ensemble": ("the training of an ensemble, killed and repeated in the same way", killed),
    "tampered_runs": ("run folders with a changed, truncated or exchanged file", tampered),
    "bad_tables": ("malformed tables, label files and recipes", tables),
    "outputs": ("every command that writes a file, to every kind of target", outputs),
    "misuse": ("public functions called with wrong arguments", misuse),
    "hostile_pages": ("pages of a run whose names and metrics contain markup", pages),
}


def markdown() -> str:
    lines = ["| attack | outcome | command | commit |", "|---|---|---|---|"]
    for name, (attack, outcome) in ROWS.items():
        result = read(name)
        commit = (result["code"]["commit"] or "unknown")[:12]
        changed = " with local changes" if result["code"]["dirty"] else ""
        lines.append(
            f"| {attack} | {outcome(result)} | `{result['command']}` | {commit}{changed} |"
        )
    return "\n".join(lines)


def kills_in_words() -> str:
    result = read("kill")
    aimed = result["kills"] - result["at_random_moments"]
    return f"{result['at_random_moments']} random moments, and {aimed} more times"


def filled(text: str) -> str:
    """The text of a page with the counts between their markers."""
    for marker, body in (
        ("<!-- proofs -->", f"\n{markdown()}\n"),
        ("<!-- proofs: kill -->", kills_in_words()),
    ):
        text = re.sub(
            rf"({re.escape(marker)}).*?(<!-- end -->)",
            lambda found, body=body: found[1] + body + found[2],
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> None:
    for name in ("reliability", "resuming"):
        page = DOCS / f"{name}.md"
        write_atomically(page, filled(page.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main()
