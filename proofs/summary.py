"""Write the counts of the proofs into the pages that quote them.

python proofs/summary.py    → reliability.md, resuming.md, scale.md and processes.md in docs/
"""

from __future__ import annotations

import json
import math
import re
import runpy
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


def followed(result: Result) -> str:
    return (
        f"{result['equal']:,} of {result['sequences']:,} sequences of "
        f"{result['steps_per_sequence']} changes equal a cold prediction within "
        f"{result['limit']:g} ({result['largest_difference']:.1g} at most)"
    )


def lost(result: Result) -> str:
    return (
        f"{result['acknowledged']:,} acknowledged: {result['lost']} lost, {result['doubled']} "
        f"stored twice, {result['gaps']} gaps between versions"
    )


def log_killed(result: Result) -> str:
    late = result["acknowledged_after_a_full_disk"]
    return (
        f"{result['kills']} kills, {result['full_disks']} full disks, {lost(result)}, {late} "
        "acknowledged after a full disk"
    )


def service_killed(result: Result) -> str:
    writing, ready = result["seconds_until_writing"], result["seconds_until_ready"]
    times = (
        f"{name}: writing again after {writing[name]['median']:.2g} s (at most "
        f"{writing[name]['maximum']:.2g} s), ready after {ready[name]['median']:.2g} s (at most "
        f"{ready[name]['maximum']:.2g} s)"
        for name in ("front", "engine")
        if writing[name] and ready[name]
    )
    return f"{result['kills']} kills, {lost(result)}; {'; '.join(times)}"


def stopped(result: Result) -> str:
    counts = {name: sum(found.values()) for name, found in result["answers"].items()}
    return (
        f"{result['seconds_stopped']:g} s: {counts['writes']:,} writes acknowledged, "
        f"{counts['published_reads']:,} published predictions answered, "
        f"{counts['reads_at_the_newest_version']:,} reads at a newer version refused with "
        f"Retry-After; caught up {result['seconds_until_all_is_published']:.2g} s later"
    )


def histories(result: Result) -> str:
    return (
        f"{result['histories']} histories of {result['clients']} clients on {result['nodes']} "
        f"nodes with {sum(result['faults'].values())} faults: {result['requests']:,} requests, "
        f"{result['compared_predictions']:,} predictions compared, {len(result['violations'])} "
        "violations of the promise"
    )


def disks(result: Result) -> str:
    rounds = sum(result["faults"].values())
    return (
        f"{rounds} failures of {len(result['faults'])} kinds, {lost(result)}, "
        f"{result['acknowledged_after_the_fault']} acknowledged after the failure, "
        f"{result['reads']:,} reads answered meanwhile"
    )


def scenarios(result: Result) -> str:
    done = f"{result['passed']} of {result['passed'] + result['failed']} scenarios passed"
    return f"{done}, Chromium {result['chromium'].split('.')[0]}"


def swaps(result: dict[str, Any]) -> str:
    return (
        f"{result['swaps']} activations during {result['requests']:,} requests: {result['failed']} "
        f"failed, {result['mixed']} answers of two models mixed, {result['stale']} too old; all "
        f"{result['answers_compared']:,} answers equal a cold prediction"
    )


def attacks(result: dict[str, Any]) -> str:
    kinds = len(result["groups"])
    return f"{result['cases']} attacks of {kinds} kinds: {result['successes']} successes"


def random_requests(result: dict[str, Any]) -> str:
    failures = sum(n for code, n in result["statuses"].items() if code >= "500" and code != "503")
    return (
        f"{result['requests']:,} requests: {failures} internal errors, "
        f"{result['tracebacks']} tracebacks in the log"
    )


ROWS = {
    "kill": ("commands killed at random moments and while they write, then repeated", killed),
    "kill_ensemble": ("the training of an ensemble, killed and repeated in the same way", killed),
    "tampered_runs": ("run folders with a changed, truncated or exchanged file", tampered),
    "bad_tables": ("malformed tables, label files and recipes", tables),
    "outputs": ("every command that writes a file, to every kind of target", outputs),
    "misuse": ("public functions called with wrong arguments", misuse),
    "hostile_pages": ("pages of a run whose names and metrics contain markup", pages),
    "incremental": ("predictions that follow random changes of labels, nodes and edges", followed),
    "label_log": ("a process that stores labels, killed while clients write", log_killed),
    "serve_kills": ("processes of the service, killed while clients write", service_killed),
    "serve_stopped": ("the engine of the service, stopped for a while", stopped),
    "serve_histories": ("answers of the service under faults, against its promise", histories),
    "serve_disk": ("failing syncs, full disks and power failures of the service", disks),
    "serve_swap": ("models that replace each other while clients read and write", swaps),
    "serve_hostile": ("hostile requests to the service", attacks),
    "serve_fuzz": ("random requests that follow the description of the API", random_requests),
    "serve_page": ("the page of the service in a browser, with ids that contain markup", scenarios),
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


def builds_in_words() -> str:
    lines = []
    for result in read("store").values():
        found, commit = result["build"], (result["code"]["commit"] or "unknown")[:12]
        load = found["load_average"][0]
        text = (
            f"{result['nodes']:,} nodes and {result['in_edges']:,} in-edges: built in "
            f"{found['seconds']:.1f} s ({found['cpu_seconds']:.1f} s of CPU time, "
            f"{result['cores']} cores, load average {load:g}), with at most "
            f"{found['peak_anonymous_bytes'] / 1e9:.2f} GB of anonymous memory (limit "
            f"{result['memory_limit']}). The store takes {result['store_bytes'] / 1e9:.2f} GB"
        )
        if "equal" in result:
            same = "bitwise equal" if all(result["equal"].values()) else "not equal"
            text += f"; it is {same} to the graph built in memory"
        if "killed" in result:
            killed = result["killed"]
            text += (
                f". {killed['builds']} builds were killed {killed['kills']} times and started "
                f"again. {killed['different']} of the resulting stores differ from the first one"
            )
        more = " --kills 0 --no-compare" if "equal" not in result else ""
        command = f"python proofs/store.py --scale {result['scale']:g}{more}"
        changed = " with local changes" if result["code"]["dirty"] else ""
        lines.append(f"- {text} (`{command}`, commit {commit}{changed}).")
    return "\n\n" + "\n".join(lines) + "\n\n"


def predictions_in_words() -> str:
    lines = []
    for result in read("inference").values():
        found, commit = result["predict"], (result["code"]["commit"] or "unknown")[:12]
        text = (
            f"{result['nodes']:,} nodes and {result['in_edges']:,} in-edges: predicted in "
            f"{found['seconds'] / 60:.1f} minutes ({found['cpu_seconds'] / 60:.1f} minutes of CPU "
            f"time, {result['cores']} cores). The limit was {result['memory_limit']}; the whole "
            f"process used at most {found['peak_anonymous_bytes'] / 2**30:.1f} GiB of anonymous "
            "memory, including about half a GiB for Python and torch"
        )
        if "compared" in result:
            most = max(way["difference"] for way in result["compared"].values())
            text += f". The results of {', '.join(result['compared'])} differ by at most {most:.1g}"
        lines.append(f"- {text} (`{result['command']}`, commit {commit}).")
    return "\n\n" + "\n".join(lines) + "\n\n"


def at_most(number: float) -> str:
    """A positive number, rounded up to one digit."""
    unit = 10.0 ** math.floor(math.log10(number))
    return f"{math.ceil(number / unit) * unit:.0e}"


def ranks_in_words() -> str:
    result = read("ranks")
    equal, kills, stopped = result["equality"], result["kills"], result["stopped"]
    parts = {part["command"]: part["code"]["commit"] or "unknown" for part in (equal, kills)}
    made = "; ".join(f"`{command}`, commit {commit[:12]}" for command, commit in parts.items())
    *first, last = map(str, equal["processes"])
    counts = f"{', '.join(first)} and {last}"
    cases, dropped = stopped["cases"].values(), sum(equal["with_attention_dropout"].values())
    largest = at_most(equal["largest_relative_difference"])
    were_all_restarted = kills["restarted"] == kills["trainings"]
    others = "" if were_all_restarted else "; the others had already finished"
    return (
        f"\n\n- {equal['tasks']} tasks, {dropped} of them with attention dropout, were trained "
        f"with {counts} processes. The relative difference of the weights was at most {largest} "
        f"after each of {equal['steps']:,} steps. All {equal['trainings']} trainings were "
        f"repeated, and {equal['same_bits_twice']} had bitwise the same weights. {equal['leaks']} "
        f"trainings changed when validation and test labels changed.\n- A process was killed in "
        f"{kills['kills']} of {kills['trainings']} trainings. {kills['restarted']} of them were "
        f"started again{others}. {kills['equal']} of them ended with bitwise the same weights as "
        f"without the kill.\n- One of two processes was "
        f"stopped, in one training while both trained, and in another while the first process "
        f"scored the model. The time limit was {stopped['timeout_s']} seconds. "
        f"{sum(case['equal'] for case in cases)} of {len(cases)} trainings ended with bitwise the "
        f"same weights.\n\n({made}; {equal['machine']})\n"
    )


def large_training_in_words() -> str:
    if not (RESULTS / "large_training.json").exists():
        return "\n\nNot measured yet.\n\n"
    lines = []
    for result in read("large_training").values():
        commit = (result["code"]["commit"] or "unknown")[:12]
        text = f"{result['nodes']:,} nodes and {result['in_edges']:,} in-edges:"
        if "train" in result:
            found = result["train"]
            first, second = (epoch["seconds"] / 60 for epoch in found["epochs"])
            text += (
                f" two epochs took {first:.1f} and {second:.1f} minutes on {result['cores']} cores "
                f"({found['ranks']} processes; the second epoch was scored). A process used at "
                f"most {found['peak_anonymous_bytes'] / 1e9:.2f} GB of anonymous memory. The "
                f"estimates were {found['memory_ratio']:.2f} times the measured memory and "
                f"{found['time_ratio']:.2f} times the measured time."
            )
        for name, case in result.get("prefetch", {}).items():
            text += (
                f" If the store was not in memory, an epoch of {case['steps']} {name} batches took "
                f"{case['seconds_without']:.1f} s without reading ahead and "
                f"{case['seconds_with']:.1f} s with it ({case['speedup']:.1f} times as fast; "
                f"{'the same' if case['equal_weights'] else 'different'} weights)."
            )
        lines.append(f"- {text} (`{result['command']}`, commit {commit})")
    return "\n\n" + "\n".join(lines) + "\n\n"


def filled(text: str) -> str:
    """The text of a page with the counts between their markers."""
    full_size = runpy.run_path(str(Path(__file__).parent / "full_size.py"))
    for marker, body in (
        ("<!-- proofs -->", f"\n{markdown()}\n"),
        ("<!-- proofs: kill -->", kills_in_words()),
        ("<!-- proofs: store -->", builds_in_words()),
        ("<!-- proofs: inference -->", predictions_in_words()),
        ("<!-- proofs: ranks -->", ranks_in_words()),
        ("<!-- proofs: large_training -->", large_training_in_words()),
        ("<!-- proofs: full_size -->", f"\n{full_size['table']()}\n"),
        ("<!-- proofs: mag240m -->", f"\n{full_size['mag240m']()}\n"),
    ):
        text = re.sub(
            rf"({re.escape(marker)}).*?(<!-- end -->)",
            lambda found, body=body: found[1] + body + found[2],
            text,
            flags=re.DOTALL,
        )
    return text


def main() -> None:
    for name in ("reliability", "resuming", "scale", "processes"):
        page = DOCS / f"{name}.md"
        write_atomically(page, filled(page.read_text(encoding="utf-8")).encode())


if __name__ == "__main__":
    main()
