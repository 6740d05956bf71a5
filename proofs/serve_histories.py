"""Record histories of clients while the service is disturbed, and check its promise (S7).

    python proofs/serve_histories.py                   100 histories → results/serve_histories.json
    python proofs/serve_histories.py --histories 2     a short form

In each history, 8 clients write and read 50 nodes over HTTP: labels, retractions and undos, some
with If-Match; single nodes and several at once, published and with `min_version`. Meanwhile the
front, the engine or both are killed, the engine is stopped for a while, or the disk is full (by a
limit on the size of files of the front). Requests without an answer are repeated with the same
Idempotency-Key, or given up. The checker in promise.py then compares every answer with the stored
events, and every probability with a cold prediction. At the end the published predictions must
contain all events.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from live_service import (
    CLASSES,
    PAUSE,
    RESULTS,
    START,
    Connection,
    Server,
    node_name,
    send_signal,
    serving,
    train,
    wait_for,
    write_result,
)
from promise import Event, Exchange, History, Labels, check_history, check_predictions

from unimp.analysis.predictions import keep_observed
from unimp.runs.loading import load_run
from unimp.serving.checking import check
from unimp.serving.reader import Reader

CLIENTS, NODES, HOT = 8, 50, 3
PAUSES = (0.2, 1.2)
"""Seconds before a fault. Half of the faults also wait until the service has recovered."""
CATCH_UP = 10.0
"""Seconds in which the published predictions must contain all events after the last fault."""
FAULTS = ("front", "engine", "both", "stop", "disk")


class Client(threading.Thread):
    """A client that sends random requests and records them."""

    def __init__(self, name: str, port: int, seed: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.exchanges: list[Exchange] = []
        self._draw, self._stop_sending = random.Random(f"{name} {seed}"), stop
        self._connection, self._count = Connection(port), 0
        self._seen: dict[str, int] = {}  # the version of each node's label, as last read
        self._newest = 0
        self._mine: list[int] = []

    def run(self) -> None:
        while not self._stop_sending.wait(self._draw.uniform(0.005, 0.05)):
            self.act()
        self.close()

    def close(self) -> None:
        self._connection.close()

    def act(self) -> None:
        """Send one random request."""
        chance = self._draw.random()
        if chance < 0.45:
            self.read()
        elif chance < 0.55 and self._mine:
            version = self._mine.pop(self._draw.randrange(len(self._mine)))
            self._write("POST", "/v1/undo", {"version": version}, kind="undo", undoes=version)
        else:
            node = self._node()
            path, label = f"/v1/nodes/{node}/label", self._draw.choice(CLASSES)
            match = self._seen.get(node, 0) if self._draw.random() < 0.4 else None
            given: dict[str, Any] = {"nodes": (node,), "if_match": match}
            if chance < 0.65:
                self._write("DELETE", path, None, kind="retract", **given)
            else:
                self._write("PUT", path, {"label": label}, kind="label", label=label, **given)

    def _node(self) -> str:
        """A node; some nodes are chosen by many clients at once."""
        return node_name(self._draw.randrange(HOT if self._draw.random() < 0.3 else NODES))

    def read(self, nodes: tuple[str, ...] = (), *, plain: bool = False) -> Exchange:
        """Read nodes; without `plain`, half of the reads have a min_version."""
        at_least = None
        if not plain and self._draw.random() < 0.5:
            at_least = self._newest + (1 if self._draw.random() < 0.1 else 0)
        query = "" if at_least is None else f"?min_version={at_least}"
        if not nodes:
            several = self._draw.random() < 0.3
            nodes = tuple(dict.fromkeys(self._node() for _ in range(5 if several else 1)))
        sent = time.monotonic()
        if len(nodes) == 1:
            answer = self._connection.send("GET", f"/v1/nodes/{nodes[0]}{query}")
        else:
            answer = self._connection.send("POST", f"/v1/predict{query}", {"ids": nodes})
        received, body = time.monotonic(), answer.body
        if answer.status == 200:
            body = {"nodes": [body["node"]] if "node" in body else body["nodes"], **body}
            self._newest = max(self._newest, body["acknowledged"])
            self._seen |= {node["id"]: node["label_version"] for node in body["nodes"]}
        given = {"etag": answer.etag, "retry_after": answer.retry_after, "problem": answer.problem}
        one = Exchange(
            sent, received, "read", nodes, answer.status, body, **given, min_version=at_least
        )
        self.exchanges.append(one)
        if one.status == 0:
            self._stop_sending.wait(PAUSE)
        return one

    def _write(
        self, method: str, path: str, body: Any, *, if_match: int | None = None, **given: Any
    ) -> None:
        """Send a write until it is answered; one in ten is given up after its first attempt."""
        self._count += 1
        headers = {"Idempotency_Key": f"{self.name}-{self._count}"}
        if if_match is not None:
            headers["If_Match"] = f'"{if_match}"'
        patient = self._draw.random() < 0.9
        while True:
            sent = time.monotonic()
            answer = self._connection.send(method, path, body, **headers)
            one = Exchange(
                sent,
                time.monotonic(),
                status=answer.status,
                body=answer.body,
                retry_after=answer.retry_after,
                problem=answer.problem,
                key=headers["Idempotency_Key"],
                if_match=if_match,
                **given,
            )
            self.exchanges.append(one)
            if one.is_acknowledged:
                self._newest = max(self._newest, answer.body["version"])
                if one.kind == "label":
                    self._mine.append(answer.body["version"])
            if answer.status not in (0, 503) or not patient or self._stop_sending.wait(PAUSE):
                return


class Disturber:
    """Faults of one service."""

    def __init__(self, server: Server, draw: random.Random) -> None:
        self._server, self._draw = server, draw
        self.ends: list[float] = []
        self.counts: Counter[str] = Counter()
        self.broken = 0
        """Full disks that the service has noticed."""

    def cause(self, kind: str) -> None:
        """Cause a fault and repair it: a front that ended is started again."""
        server = self._server
        self.counts[kind] += 1
        engine = server.engine
        if kind in ("engine", "both"):
            send_signal(engine, signal.SIGKILL)
        if kind in ("front", "both"):
            self._restart(signal.SIGKILL)
        if kind == "engine":  # the service reports that it is ready until it has noticed the end
            wait_for(lambda: server.engine not in (None, engine), START, "there is no new engine")
        if kind == "stop" and send_signal(engine, signal.SIGSTOP):
            time.sleep(self._draw.uniform(0.2, 1.5))
            send_signal(engine, signal.SIGCONT)
        if kind == "disk":
            self._fill()

    def _fill(self) -> None:
        """Limit the size of files of the front until it reports that; then end it."""
        server = self._server
        wal = server.folder / "labels.db-wal"
        size = wal.stat().st_size if wal.exists() else 0
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        limit = size + self._draw.randrange(1, 60_000)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, hard))
        end = time.monotonic() + 1.5
        with Connection(server.port) as connection:
            while time.monotonic() < end and server.states(connection).get("writes", True):
                time.sleep(PAUSE)
            self.broken += not server.states(connection).get("writes", True)
        # There is space again, but nobody knows what was written.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
        time.sleep(self._draw.uniform(0, 0.5))
        self._restart(self._draw.choice([signal.SIGKILL, signal.SIGTERM]))

    def _restart(self, how: int) -> None:
        self._server.end(how)
        self.ends.append(time.monotonic())
        self._server.start()


def cold_predictions(folder: Path) -> Callable[[Labels], Mapping[str, Mapping[str, float]]]:
    """A function from labels of events to the predictions of a run that was just loaded."""
    run = load_run(folder)
    names = list(run.task.node_names or ())
    classes = list(run.task.class_names or ())
    number = {name: n for n, name in enumerate(names)}

    def predict(labels: Labels) -> dict[str, dict[str, float]]:
        observed = run.observed_labels().clone()
        for node, (label, _) in labels.items():
            observed[number[node]] = -1 if label is None else classes.index(label)
        chances = keep_observed(run.probabilities_of(run.outputs(observed)), observed).tolist()
        return {
            node_name(n): dict(zip(classes, chances[number[node_name(n)]], strict=True))
            for n in range(NODES)
        }

    return predict


def stored_events(folder: Path) -> list[Event]:
    """The stored events, read without the code of the service that interprets them."""
    with Reader(folder) as reader:
        rows = reader.rows(
            "select version, kind, node, body, undoes, key from event order by version"
        )
    return [
        Event(version, kind, node, json.loads(body).get("label"), undoes, key)
        for version, kind, node, body, undoes, key in rows
    ]


def run_labels(folder: Path) -> dict[str, str]:
    """The labels that the run itself contains."""
    run = load_run(folder)
    classes, names = list(run.task.class_names or ()), list(run.task.node_names or ())
    known = enumerate(run.observed_labels().tolist())
    return {names[n]: classes[c] for n, c in known if c >= 0}


def record(
    folder: Path, seed: str, *, pauses: tuple[float, float] = PAUSES, faults: tuple[str, ...] = ()
) -> tuple[History, dict[str, Any]]:
    """Record one history; return it with other problems and counts.

    faults: those to cause; two random ones if empty.
    """
    draw, stop = random.Random(seed), threading.Event()
    given = run_labels(folder)
    with serving(folder) as server:
        clients = [Client(f"c{n}", server.port, seed, stop) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        disturber = Disturber(server, draw)
        kinds = faults or tuple(draw.choice(FAULTS) for _ in range(2))
        for kind in kinds:
            time.sleep(draw.uniform(*pauses))
            disturber.cause(kind)
            if draw.random() < 0.5:
                server.wait_until_ready()
        server.wait_until_ready()
        time.sleep(pauses[1])
        stop.set()
        for client in clients:
            client.join()
        last = Client("last", server.port, seed, threading.Event())
        head = len(stored_events(folder))
        everything = tuple(map(node_name, range(NODES)))
        problems = []
        try:
            took = wait_for(
                lambda: last.read(everything, plain=True).body["version"] >= head,
                CATCH_UP,
                "not all events are published",
            )
        except AssertionError as error:
            took = CATCH_UP
            problems.append(str(error))
        last.close()
        tracebacks = server.tracebacks()
    with Reader(folder) as reader:
        problems += check(reader)
    if tracebacks:
        problems.append(f"{tracebacks} tracebacks")
    exchanges = [one for client in (*clients, last) for one in client.exchanges]
    history = History(exchanges, stored_events(folder), given, disturber.ends)
    counts = {
        "faults": disturber.counts,
        "full_disks": disturber.broken,
        "seconds_until_all_is_published": took,
        "problems": problems,
    }
    return history, counts


def prove(
    histories: int,
    seed: int,
    place: Path,
    *,
    jobs: int = 1,
    minutes: float = math.inf,
    **options: Any,
) -> dict[str, Any]:
    """Record and check histories, each on a copy of one run.

    jobs: so many at the same time. minutes: start none after this time.
    """
    began, trained = time.monotonic(), train(place)
    cold = cold_predictions(trained)

    def check_one(number: int) -> tuple[Counter[str], Counter[str], float, list[str]] | None:
        if time.monotonic() - began > 60 * minutes:
            return None
        folder = place / f"history-{number}"
        shutil.copytree(trained, folder)
        history, found = record(folder, f"{seed} {number}", **options)
        rows, wrong = check_predictions(history, cold)
        wrong += check_history(history) + found["problems"]
        print(f"history {number}: {len(wrong)} violations {wrong[:3]}", flush=True)
        shutil.rmtree(folder)
        counts = Counter(
            requests=len(history.exchanges),
            acknowledged=sum(one.is_acknowledged for one in history.exchanges),
            reads=sum(one.kind == "read" and one.status == 200 for one in history.exchanges),
            conflicts=sum(one.status == 412 for one in history.exchanges),
            without_an_answer=sum(one.status == 0 for one in history.exchanges),
            events=len(history.events),
            compared_predictions=rows,
            full_disks_noticed=found["full_disks"],
        )
        took = found["seconds_until_all_is_published"]
        return counts, found["faults"], took, [f"history {number}: {one}" for one in wrong]

    with ThreadPoolExecutor(jobs) as pool:
        found = [one for one in pool.map(check_one, range(histories)) if one is not None]
    totals: Counter[str] = sum((counts for counts, *_ in found), Counter())
    caused: Counter[str] = sum((faults for _, faults, *_ in found), Counter())
    return {
        "histories": len(found),
        "clients": CLIENTS,
        "nodes": NODES,
        **totals,
        "faults": dict(sorted(caused.items())),
        "seconds_until_all_is_published": round(max(took for *_, took, _ in found), 3),
        "violations": [one for *_, wrong in found for one in wrong],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="Histories at the same time.")
    parser.add_argument("--minutes", type=float, default=math.inf, help="Start none after this.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of faults and requests.")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve_histories.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        limits = {"jobs": options.jobs, "minutes": options.minutes}
        found = prove(options.histories, options.seed, Path(place), **limits)
    what = (
        "histories of clients that write and read over HTTP while processes are killed or stopped "
        "or the disk is full; every answer is compared with the stored events"
    )
    write_result(options.out, "serve_histories.py", what, found)
    return 1 if found["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
