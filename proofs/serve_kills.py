"""Kill the processes of the live label service at random moments while clients write (S1).

    python proofs/serve_kills.py               200 kills → proofs/results/serve_kills.json
    python proofs/serve_kills.py --kills 4     a short form

Ten clients send labels, retractions and undos over HTTP, 50 per second in all. A request that is
not acknowledged is repeated with the same Idempotency-Key. At random moments the front, the engine,
both, or the trainer are killed (SIGKILL). A front that was killed is started again at once, as by a
supervisor; the front itself starts the engine again. Some kills arrive before the service has
recovered from the one before. After each kill every acknowledged event must be stored exactly once,
with the version that was acknowledged, and versions must have no gaps. The labels must be those
that follow from the events.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from label_log import compare
from live_service import (
    CLASSES,
    NODES,
    PAUSE,
    RESULTS,
    START,
    Connection,
    Server,
    node_name,
    processes,
    send_signal,
    serving,
    summary_of,
    train,
    wait_for,
    write_result,
)

KINDS = ("front", "engine", "both", "trainer")
CLIENTS, RATE = 10, 50.0
HASTY = 0.2
"""The share of kills that arrive before the service has recovered from the one before."""
CHECKED = 20
"""The labels are computed again from all events after so many kills, and at the end."""


class Writer(threading.Thread):
    """A client that writes at a rate, and remembers what was acknowledged to it."""

    def __init__(
        self, name: str, server: Server, seed: int, stop: threading.Event, nodes: int = NODES
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._nodes = nodes
        self._draw, self._stop_writing = random.Random(f"{name} {seed}"), stop
        self._connection = Connection(server.port)
        self.acknowledged: dict[str, int] = {}
        self.answers: list[tuple[float, float]] = []  # when acknowledged requests were sent
        self.refused: Counter[str] = Counter()
        self._labels: list[int] = []

    def run(self) -> None:
        number = 0
        due = time.monotonic() + self._draw.uniform(0, CLIENTS / RATE)
        while not self._stop_writing.wait(max(0.0, due - time.monotonic())):
            number += 1
            self._write(f"{self.name}-{number}")
            due = max(due + CLIENTS / RATE, time.monotonic() - 1)  # catch up for one second
        self._connection.close()

    def _write(self, key: str) -> None:
        path = f"/v1/nodes/{node_name(self._draw.randrange(self._nodes))}/label"
        chance = self._draw.random()
        request: tuple[str, str, Any] = ("PUT", path, {"label": self._draw.choice(CLASSES)})
        if chance < 0.1:
            request = ("DELETE", path, None)
        elif chance < 0.2 and self._labels:
            request = ("POST", "/v1/undo", {"version": self._labels.pop()})
        while not self._stop_writing.is_set():
            sent = time.monotonic()
            answer = self._connection.send(*request, Idempotency_Key=key)
            if answer.status == 200:
                self.answers.append((sent, time.monotonic()))
                self.acknowledged[key] = answer.body["version"]
                if request[0] == "PUT":
                    self._labels.append(answer.body["version"])
                return
            if answer.status not in (0, 503):
                self.refused[f"{answer.status} {answer.problem}"] += 1
                return
            self._stop_writing.wait(PAUSE)


class Killer:
    """Kills processes of a service, and measures how it recovers."""

    def __init__(self, server: Server, writers: list[Writer], draw: random.Random) -> None:
        self._server, self._writers, self._draw = server, writers, draw
        self._connection = Connection(server.port)
        self.writing: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.ready: dict[str, list[float]] = {kind: [] for kind in KINDS}
        self.outlived = 0
        """Engines and trainers that did not end after their front."""
        self.ended: list[float] = []

    def close(self) -> None:
        self._connection.close()

    def kill(self, kind: str, *, hasty: bool) -> None:
        """Kill, start the front again if it was killed, and wait until writing works again.

        hasty: do not wait until the engine is ready.
        """
        server = self._server
        if kind == "trainer":
            self._kill_trainer()
            return
        engine = server.engine
        orphans = [engine, *server.children("unimp.serving.trainer")]
        killed = time.monotonic()
        if kind != "front":
            send_signal(engine, signal.SIGKILL)
        if kind != "engine":
            server.end()
            server.start()
        self.writing[kind].append(self._until_written(killed))
        if not hasty:
            wait_for(
                lambda: server.engine not in (None, engine) and server.is_ready(self._connection),
                START,
                "the service is not ready",
            )
            self.ready[kind].append(time.monotonic() - killed)
            if kind != "engine":
                self._wait_for_the_end({pid for pid in orphans if pid is not None}, killed)

    def _wait_for_the_end(self, orphans: set[int], killed: float) -> None:
        """Measure when the engine and the trainer of a killed front have ended."""

        def there() -> set[int]:
            modules = ("unimp.serving.engine", "unimp.serving.trainer")
            return orphans & {p for m in modules for p in processes(m, self._server.folder)}

        try:
            wait_for(lambda: not there(), START, "processes of a killed front still run")
        except AssertionError:
            self.outlived += len(there())
        self.ended.append(time.monotonic() - killed)

    def _kill_trainer(self) -> None:
        """Kill the trainer at a random moment; the front starts it again, or stops the job."""
        server, trainers = self._server, list[int]()
        while not trainers:  # a training may end before the moment
            self.train()
            time.sleep(self._draw.uniform(0, 4))
            trainers = server.children("unimp.serving.trainer")
        (trainer,) = trainers
        killed = time.monotonic()
        send_signal(trainer, signal.SIGKILL)
        self.writing["trainer"].append(self._until_written(killed))

        def noticed() -> bool:
            if server.children("unimp.serving.trainer") not in ([], [trainer]):
                return True
            jobs = self._connection.send("GET", "/v1/jobs").body
            return jobs is not None and all(job["state"] != "training" for job in jobs["jobs"])

        wait_for(noticed, START, "the end of the trainer was not noticed")
        self.ready["trainer"].append(time.monotonic() - killed)

    def jobs(self) -> dict[str, int]:
        """The number of trainings by their states and the details of these."""
        jobs = self._connection.send("GET", "/v1/jobs").body["jobs"]
        return dict(Counter(f"{job['state']} {job['detail']}".strip() for job in jobs))

    def train(self) -> None:
        """Start a training that does not end, unless one runs, and wait for its process."""
        self._connection.close()

        def trains() -> bool:
            if self._server.children("unimp.serving.trainer"):
                return True
            answer = self._connection.send("POST", "/v1/retrain", {"epochs": 100_000})
            assert answer.status in (200, 503), answer  # 503: another one has just ended
            return False

        wait_for(trains, START, "there is no trainer")

    def _until_written(self, since: float) -> float:
        """Wait for the acknowledgment of a request that was sent since then."""

        def first() -> float:
            found = [
                received
                for writer in self._writers
                for sent, received in writer.answers[-20:]
                if sent >= since
            ]
            return min(found, default=0.0)

        wait_for(first, START, "nothing was acknowledged")
        return first() - since


def prove(kills: int, seed: int, folder: Path, nodes: int = NODES) -> dict[str, Any]:
    """Kill many times on one run folder, and compare after each kill."""
    draw, stop = random.Random(seed), threading.Event()
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    draw.shuffle(kinds)
    totals: Counter[str] = Counter()
    problems: list[str] = []
    with serving(folder) as server:
        writers = [Writer(f"c{number}", server, seed, stop, nodes) for number in range(CLIENTS)]
        for writer in writers:
            writer.start()
        killer = Killer(server, writers, draw)
        began = time.monotonic()
        for number, kind in enumerate(kinds, 1):
            time.sleep(draw.uniform(0.1, 1))
            hasty = draw.random() < HASTY and number < kills and kinds[number] != "trainer"
            if draw.random() < 0.2 and kind in ("front", "both"):  # the trainer must end too
                server.wait_until_ready()
                killer.train()
                hasty = False
            killer.kill(kind, hasty=hasty)
            found = compare(server.folder, writers, whole=number % CHECKED == 0 or number == kills)
            totals.update({name: found[name] for name in ("lost", "doubled", "gaps")})
            problems += found["problems"]
            print(f"{number} of {kills}, {kind}: {found}", flush=True)
        took = time.monotonic() - began
        stop.set()
        for writer in writers:
            writer.join()
        server.wait_until_ready()
        killer.close()
        jobs = killer.jobs()
        killer.close()
        server.end(signal.SIGTERM)
        clean = not (folder / ".labels.lock").exists()
        found = compare(server.folder, writers)
        totals.update({name: found[name] for name in ("lost", "doubled", "gaps")})
        problems += found["problems"]
        tracebacks = server.tracebacks()
    acknowledged = sum(len(writer.acknowledged) for writer in writers)
    refused: Counter[str] = sum((writer.refused for writer in writers), Counter())
    return {
        "kills": kills,
        "by_process": dict(sorted(Counter(kinds).items())),
        "acknowledged": acknowledged,
        "acknowledged_per_second": round(acknowledged / took, 1),
        "events": found["events"],
        **{name: totals[name] for name in ("lost", "doubled", "gaps")},
        "problems": problems,
        "refused": dict(refused),
        "outlived": killer.outlived,
        "clean_end": clean,
        "trainings": jobs,
        "tracebacks": tracebacks,
        "seconds_until_writing": {k: summary_of(v) for k, v in killer.writing.items()},
        "seconds_until_orphans_ended": summary_of(killer.ended),
        "seconds_until_ready": {k: summary_of(v) for k, v in killer.ready.items()},
    }


def failures(found: dict[str, Any]) -> int:
    """The number of broken promises in a result."""
    counts = ("lost", "doubled", "gaps", "outlived", "tracebacks")
    words = len(found["problems"]) + len(found["refused"]) + (not found["clean_end"])
    return sum(found[name] for name in counts) + words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="Seed of moments and requests.")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve_kills.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = prove(options.kills, options.seed, train(Path(place)))
    what = (
        "the front, the engine, both, or the trainer of a service are killed (SIGKILL) at random "
        "moments while clients write over HTTP and repeat what was not acknowledged"
    )
    write_result(options.out, "serve_kills.py", what, found)
    return 1 if failures(found) else 0


if __name__ == "__main__":
    sys.exit(main())
