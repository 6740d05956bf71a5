"""Swap the model of a service while people read and write, and check every answer (S9).

    python proofs/serve_swap.py                      → proofs/results/serve_swap.json
    python proofs/serve_swap.py --swaps 6            a short form

A service trains two further generations on live labels. Readers and writers then send requests
without a pause, while generations are activated and rolled back in random order. No request may
fail. Each answer states one generation and one version; its probabilities must be those of a cold
prediction by this generation with the labels of this version. After an activation was
acknowledged, no request that starts later may be answered by the generation before. An activation
of a loaded generation must take at most one second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import torch

import unimp
from unimp import __version__
from unimp.analysis.predictions import keep_observed
from unimp.config.run_files import GENERATIONS
from unimp.data.files import write_atomically
from unimp.runs.run import Run
from unimp.serving.engine.process import load_with_split
from unimp.serving.events import Label, Retraction
from unimp.serving.reader import Reader
from unimp.tasks.names import class_names
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "serve_swap.json"
LIMIT = 1e-5
SECONDS = 1.0
"""The longest time that an activation of a loaded generation may take."""
MOST_STATES = 3_000
"""Cold predictions that are computed at most; of more states, a random part is compared."""


@dataclass
class Answer:
    """What a reader received. began, ended: when the request was sent and answered."""

    began: float
    ended: float
    generation: int
    version: int
    nodes: list[dict[str, Any]]


@dataclass
class Load:
    """Readers and writers of a service, and everything that they received."""

    address: str
    ids: list[str]
    classes: list[str]
    seed: int
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    writes: int = 0
    version: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers={"Origin": self.address}, timeout=60)

    def ask(self, client: httpx.Client, method: str, path: str, **more: Any) -> Any:
        """The JSON of an answer; None if the request failed, which is noted."""
        try:
            answer = client.request(method, path, **more)
        except httpx.HTTPError as error:
            self.failures.append(f"{method} {path}: {type(error).__name__}")
            return None
        if answer.status_code >= 400:
            self.failures.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
            return None
        return answer.json()

    def read(self, number: int) -> None:
        draw = random.Random(f"reader {number} {self.seed}")
        with self.client() as client:
            while not self.stop.is_set():
                query = {"min_version": self.version} if draw.random() < 0.5 else {}
                some = draw.sample(self.ids, min(20, len(self.ids)))
                kind = draw.randrange(3)
                began = time.monotonic()
                if kind == 0:
                    found = self.ask(client, "GET", f"/v1/nodes/{some[0]}", params=query)
                elif kind == 1:
                    body = {"ids": some}
                    found = self.ask(client, "POST", "/v1/predict", json=body, params=query)
                else:
                    query["limit"] = 20
                    found = self.ask(client, "GET", "/v1/nodes", params=query)
                if found is None:
                    continue
                if found["version"] < query.get("min_version", 0):
                    self.failures.append(f"version {found['version']} is too old: {query}")
                nodes = [found["node"]] if kind == 0 else found["nodes"]
                ended = time.monotonic()
                self.answers.append(
                    Answer(began, ended, found["generation"], found["version"], nodes)
                )

    def write(self, number: int, pause: float) -> None:
        draw = random.Random(f"writer {number} {self.seed}")
        with self.client() as client:
            while not self.stop.wait(pause):
                path = f"/v1/nodes/{draw.choice(self.ids)}/label"
                if draw.random() < 0.8:
                    body = {"label": draw.choice(self.classes)}
                    found = self.ask(client, "PUT", path, json=body)
                else:
                    found = self.ask(client, "DELETE", path)
                if found is not None:
                    self.version, self.writes = found["version"], self.writes + 1


def swap(
    address: str,
    folder: Path,
    *,
    generations: list[int],
    swaps: int,
    pause: float,
    readers: int = 4,
    writers: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Swap models under load, and compare every answer with its generation; all are loaded."""
    run, _ = load_with_split(folder, None)
    ids, classes = list(run.task.node_names or ()), list(class_names(run.task))
    clients = Load(address, ids, classes, seed)
    threads = [threading.Thread(target=clients.read, args=(n,)) for n in range(readers)]
    threads += [threading.Thread(target=clients.write, args=(n, 0.05)) for n in range(writers)]
    draw, active = random.Random(seed), 0
    activations: list[tuple[float, float, int]] = [(-1.0, -1.0, active)]
    with clients.client() as client:
        for thread in threads:
            thread.start()
        try:
            for _ in range(swaps):
                time.sleep(draw.uniform(0.5, 1.5) * pause)
                active = draw.choice([g for g in generations if g != active])
                began = time.monotonic()
                path = f"/v1/generations/{active}/activate"
                clients.ask(client, "POST", path, json={"override": True})
                activations.append((began, time.monotonic(), active))
            time.sleep(pause)
        finally:
            clients.stop.set()
            for thread in threads:
                thread.join()
    taken = [ended - began for began, ended, _ in activations[1:]]
    return {
        "swaps": swaps,
        "requests": len(clients.answers) + len(clients.failures) + clients.writes + swaps,
        "answers": len(clients.answers),
        "writes": clients.writes,
        "failed": len(clients.failures),
        "failures": clients.failures[:20],
        "stale": sum(one.generation not in _possible(activations, one) for one in clients.answers),
        **compare(folder, run, clients.answers, draw),
        "slowest_swap_seconds": round(max(taken), 3),
    }


def _possible(activations: list[tuple[float, float, int]], answer: Answer) -> set[int]:
    """The generations that may have answered: those active at some time during the request."""
    found = set()
    ends = [ended for _, ended, _ in activations[1:]] + [float("inf")]
    for (began, _, generation), replaced in zip(activations, ends, strict=True):
        if began <= answer.ended and answer.began <= replaced:
            found.add(generation)
    return found


def compare(folder: Path, run: Run, answers: list[Answer], draw: random.Random) -> dict[str, Any]:
    """Compare answers with cold predictions of their generation at their version."""
    by_state: dict[tuple[int, int], list[Answer]] = defaultdict(list)
    for one in answers:
        by_state[one.generation, one.version].append(one)
    states = sorted(by_state)
    chosen = sorted(draw.sample(states, min(len(states), MOST_STATES)), key=lambda s: s[1])
    where = {g: folder / GENERATIONS / str(g) if g else None for g, _ in chosen}
    runs = {generation: load_with_split(folder, place)[0] for generation, place in where.items()}
    numbers = {name: n for n, name in enumerate(run.task.node_names or ())}
    classes = {name: c for c, name in enumerate(class_names(run.task))}
    with Reader(folder) as reader:
        events = [e for e in reader.events(most=10**7) if isinstance(e.write, Label | Retraction)]
    observed, place = run.observed_labels(), 0
    largest, mixed, rows, compared = 0.0, 0, 0, 0
    for generation, version in chosen:
        while place < len(events) and events[place].version <= version:
            write = events[place].write
            assert isinstance(write, Label | Retraction)
            label = write.label if isinstance(write, Label) else None
            observed[numbers[write.node]] = -1 if label is None else classes[str(label)]
            place += 1
        model = runs[generation]
        cold = keep_observed(model.probabilities_of(model.outputs(observed)), observed)
        for one in by_state[generation, version]:
            worst = max(_difference(node, cold, numbers, classes) for node in one.nodes)
            largest, mixed = max(largest, worst), mixed + (worst > LIMIT)
            rows, compared = rows + len(one.nodes), compared + 1
    return {
        "generations": sorted({one.generation for one in answers}),
        "states": len(states),
        "states_compared": len(chosen),
        "answers_compared": compared,
        "rows_compared": rows,
        "mixed": mixed,
        "largest_difference": largest,
    }


def _difference(
    node: dict[str, Any], cold: torch.Tensor, numbers: dict[str, int], classes: dict[str, int]
) -> float:
    row = cold[numbers[node["id"]]]
    return max(
        abs(one["probability"] - float(row[classes[one["class"]]])) for one in node["classes"]
    )


def passed(found: dict[str, Any]) -> bool:
    """Whether the result of `swap` is as promised."""
    wrong = found["failed"] + found["stale"] + found["mixed"]
    enough = len(found["generations"]) > 1 and found["answers_compared"] > 0
    return not wrong and enough and found["slowest_swap_seconds"] <= SECONDS


def make_run(place: Path, nodes: int, epochs: int) -> Path:
    """A run on a random graph with names."""
    draw = random.Random(0)
    lines = ["id,size,kind,label"]
    for n in range(nodes):
        color = ("red", "green", "blue", "gray")[n % 4]
        size = draw.gauss(n % 4, 1.0)
        lines.append(f"n{n},{size:.3f},{'ab'[n % 2]},{color if n % 3 == 0 else ''}")
    (place / "nodes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = {tuple(sorted(draw.sample(range(nodes), 2))) for _ in range(3 * nodes)}
    rows = ["source,target", *(f"n{a},n{b}" for a, b in sorted(pairs))]
    (place / "edges.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    task = unimp.task_from_tables(place / "nodes.csv", place / "edges.csv", label="label")
    settings = {"train.epochs": epochs, "train.device": "cpu", "ensemble.portfolio": "none"}
    settings |= {"model.width": 32, "model.layers": 2}
    unimp.run(task, settings=settings, out=place / "run", progress=False)
    return place / "run"


def until(test: Any, seconds: float = 600.0) -> Any:
    """Wait until a test returns something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := test():
                return found
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise TimeoutError


def prove(place: Path, nodes: int, epochs: int, swaps: int, seed: int) -> dict[str, Any]:
    """Serve a run, train two generations on live labels, and swap them under load."""
    folder = make_run(place, nodes, epochs)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "unimp", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            options = {"base_url": address, "headers": {"Origin": address}, "timeout": 60}
            with httpx.Client(**options) as client:  # type: ignore[arg-type]
                until(lambda: client.get("/readyz").status_code == 200)
                for generation in (1, 2):
                    chosen = range(generation, nodes, 4 * nodes // 100)
                    labels = [{"node": f"n{n}", "label": "red"} for n in chosen]
                    client.post("/v1/labels", json={"labels": labels}).raise_for_status()
                    client.post("/v1/retrain", json={"epochs": epochs}).raise_for_status()
                    job = f"/v1/jobs/{generation}"
                    until(lambda job=job: client.get(job).json()["state"] not in RUNNING)
                    path = f"/v1/generations/{generation}/activate"
                    client.post(path, json={"override": True}, timeout=600).raise_for_status()
                client.post("/v1/generations/0/activate").raise_for_status()
            return swap(address, folder, generations=[0, 1, 2], swaps=swaps, pause=1.0, seed=seed)
        finally:
            server.terminate()


RUNNING = ("training", "loading")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--swaps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="Seed of requests and moments.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = prove(Path(place), options.nodes, options.epochs, options.swaps, options.seed)
    arguments = re.sub(r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(sys.argv[1:]))
    result = {
        "what": "generations of a model are activated and rolled back in random order, while "
        "clients read and write; each answer is compared with a cold prediction of its generation "
        "at its version",
        "nodes": options.nodes,
        **found,
        "passed": passed(found),
        "command": f"python proofs/serve_swap.py {arguments}".strip(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "unimp": __version__,
        "code": code_origin(),
    }
    write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(result, indent=1))
    return 0 if passed(found) else 1


if __name__ == "__main__":
    sys.exit(main())
