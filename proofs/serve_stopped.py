"""Stop the engine of the live label service for a while (S2).

    python proofs/serve_stopped.py                  30 seconds → proofs/results/serve_stopped.json
    python proofs/serve_stopped.py --seconds 3      a short form

The engine is stopped (SIGSTOP), as if it computed for a long time. Meanwhile writes must be
acknowledged, published predictions must be answered, and reads at a version that is not published
must be refused with 503 and Retry-After. After SIGCONT the published predictions must contain all
events within 10 seconds.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from live_service import (
    CLASSES,
    NODES,
    RESULTS,
    START,
    Answer,
    Connection,
    node_name,
    send_signal,
    serving,
    summary_of,
    train,
    wait_for,
    write_result,
)

CATCH_UP = 10.0
"""Seconds in which the engine must apply what was stored while it was stopped."""


class Client(threading.Thread):
    """A client that sends one kind of request at a rate, and counts the answers."""

    def __init__(
        self, port: int, ask: Callable[[Connection], Answer], pause: float, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._connection, self._ask = Connection(port), ask
        self._pause, self._stop_sending = pause, stop
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.answers: list[Answer] = []

    def run(self) -> None:
        while not self._stop_sending.wait(self._pause):
            sent = time.monotonic()
            answer = self._ask(self._connection)
            self.seconds.append(time.monotonic() - sent)
            self.statuses[str(answer.status)] += 1
            self.answers.append(answer)
        self._connection.close()


class Asking:
    """The requests of the clients; versions that were acknowledged are read again."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self._draw, self._nodes = random.Random(seed), nodes
        self.newest = 0

    def _path(self) -> str:
        return f"/v1/nodes/{node_name(self._draw.randrange(self._nodes))}"

    def write(self, connection: Connection) -> Answer:
        label = {"label": self._draw.choice(CLASSES)}
        answer = connection.send("PUT", f"{self._path()}/label", label)
        if answer.status == 200:
            self.newest = max(self.newest, answer.body["version"])
        return answer

    def read(self, connection: Connection) -> Answer:
        return connection.send("GET", self._path())

    def read_newest(self, connection: Connection) -> Answer:
        return connection.send("GET", f"{self._path()}?min_version={self.newest}")


def stop_engine(
    port: int, engine: int | None, seconds: float, nodes: int = NODES
) -> dict[str, Any]:
    """Stop the engine of a service that is ready; return what was measured."""
    asking, stop = Asking(nodes), threading.Event()
    connection = Connection(port)
    assert send_signal(engine, signal.SIGSTOP)
    first = asking.write(connection)
    assert first.status == 200, first
    clients = {
        "writes": Client(port, asking.write, 0.05, stop),
        "published_reads": Client(port, asking.read, 0.02, stop),
        "reads_at_the_newest_version": Client(port, asking.read_newest, 0.1, stop),
    }
    for client in clients.values():
        client.start()
    time.sleep(seconds)
    # An exact read waits for the engine before it is refused, so let the last ones end first.
    stop.set()
    for client in clients.values():
        client.join()
    send_signal(engine, signal.SIGCONT)
    connection.close()  # the service ends connections that were not used for a while
    head = asking.newest

    def published() -> int:
        version: int = asking.read(connection).body["version"]
        return version

    caught_up = wait_for(lambda: published() >= head, START, "the engine has not caught up")
    exact = asking.read_newest(connection)
    connection.close()
    exacts = clients["reads_at_the_newest_version"].answers
    return {
        "seconds_stopped": seconds,
        "answers": {name: dict(client.statuses) for name, client in clients.items()},
        "seconds": {name: summary_of(client.seconds) for name, client in clients.items()},
        "refused_without_retry_after": sum(
            answer.status == 503 and answer.retry_after is None for answer in exacts
        ),
        "events_while_stopped": head,
        "seconds_until_all_is_published": round(caught_up, 3),
        "exact_read_afterwards": exact.status,
    }


def prove(seconds: float, place: Path) -> dict[str, Any]:
    with serving(train(place)) as server:
        engine = server.engine
        found = stop_engine(server.port, engine, seconds)
        found["the_same_engine"] = server.engine == engine
        found["tracebacks"] = server.tracebacks()
    return found


def failures(found: dict[str, Any]) -> list[str]:
    """Describe the broken promises in a result."""
    answers = found["answers"]
    checks = {
        "a write was not acknowledged": set(answers["writes"]) == {"200"},
        "a published prediction was not answered": set(answers["published_reads"]) == {"200"},
        "an exact read was not refused": set(answers["reads_at_the_newest_version"]) == {"503"},
        "Retry-After is missing": not found["refused_without_retry_after"],
        "catching up took too long": found["seconds_until_all_is_published"] <= CATCH_UP,
        "the engine was started again": found.get("the_same_engine", True),
        "an exact read was refused afterwards": found["exact_read_afterwards"] == 200,
        "there is a traceback": not found.get("tracebacks"),
    }
    return [problem for problem, kept in checks.items() if not kept]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "serve_stopped.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = prove(options.seconds, Path(place))
    found["problems"] = failures(found)
    what = "the engine of a service is stopped (SIGSTOP) while clients write and read over HTTP"
    write_result(options.out, "serve_stopped.py", what, found)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
