"""Kill a process that writes labels at random moments, and compare what it acknowledged.

    python proofs/label_log.py                 200 kills → proofs/results/label_log.json
    python proofs/label_log.py --kills 4       a short form

Several clients send labels, retractions, undos and withdrawals to a process that stores them, each
with an idempotency key. The process is killed (SIGKILL) at a random moment. In every fifth start
the disk is full before that, by a limit on file sizes, and nothing may be acknowledged afterwards.
The process starts again on the same folder, and the clients repeat the requests that were not
acknowledged, with the same keys. After each kill every acknowledged event must be stored exactly
once, with the version that was acknowledged, and versions must have no gaps. The labels must be
those that follow from the events.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.serving.checking import check
from unimp.serving.reader import Reader
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "label_log.json"
NODES, LABELS = 50, ("red", "green", "blue")
CLIENTS = 8
# The server of one start: it reads one request per line and prints one receipt per line.
SERVER = """
import json, resource, sys, threading
from pathlib import Path
from unimp.errors import BrokenError
from unimp.serving.events import WRITE
from unimp.serving.store import Request, Store
store = Store(Path(sys.argv[1]))
if not store.people.all():
    for number in range(int(sys.argv[2])):
        store.people.add(f"c{number}", "admin", token=False)
if limit := int(sys.argv[3]):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
out = threading.Lock()
def answer(name, key, error, version=None):
    with out:
        print(json.dumps([name, key, version, type(error).__name__]), flush=True)
def done(name, key, future):
    error = future.exception()
    answer(name, key, error, None if error else future.result().version)
print("ready", flush=True)
for line in sys.stdin:
    name, key, writes = json.loads(line)
    try:
        future = store.submit(Request(name, tuple(map(WRITE.validate_python, writes)), key))
    except BrokenError as error:
        answer(name, key, error)
    else:
        future.add_done_callback(lambda future, name=name, key=key: done(name, key, future))
"""


class Client:
    """A client with its requests, and what was acknowledged to it."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.draw, self.number = name, random.Random(f"{name} {seed}"), 0
        self.acknowledged: dict[str, int] = {}
        self.waiting: tuple[str, list[dict[str, Any]]] | None = None

    def request(self) -> str:
        """The request that was not answered, or a new one, as a line."""
        if self.waiting is None:
            self.number += 1
            self.waiting = (f"{self.name}-{self.number}", [self._write()])
        return json.dumps([self.name, *self.waiting]) + "\n"

    def _write(self) -> dict[str, Any]:
        node = f"node {self.draw.randrange(NODES)}"
        chance = self.draw.random()
        if chance < 0.7 or not self.acknowledged:
            source = self.draw.choice([None, "file", self.name])
            label = self.draw.choice(LABELS)
            return {"kind": "label", "node": node, "label": label, "source": source}
        if chance < 0.8:
            return {"kind": "retract", "node": node}
        if chance < 0.98:
            version = self.draw.choice(list(self.acknowledged.values())[-20:])
            return {"kind": "undo", "undoes": version}
        return {"kind": "withdraw", "withdrawn": "file"}

    def receive(self, key: str, version: int | None) -> None:
        """Note an answer; a request that was refused is given up."""
        assert self.waiting is not None
        assert self.waiting[0] == key
        if version is not None:
            self.acknowledged[key] = version
        self.waiting = None


def run_until_killed(
    folder: Path, clients: list[Client], after: float, limit: int
) -> dict[str, float]:
    """Start the server, let all clients write, and kill it; return what was measured.

    limit: the largest size of a file that the server can write; 0: any. broken: the number of
    requests that the server refused because of it. late: those that it acknowledged afterwards.
    """
    started = time.perf_counter()
    command = [sys.executable, "-c", SERVER, str(folder), str(len(clients)), str(limit)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        ready = time.perf_counter() - started
        killer = threading.Timer(after, server.kill)
        killer.start()
        by_name = {client.name: client for client in clients}
        first, broken, late = 0.0, 0, 0
        try:
            for client in clients:
                server.stdin.write(client.request())
                server.stdin.flush()
            for line in server.stdout:
                if not line.endswith("\n"):
                    break  # it was killed while it answered, which is not an answer
                name, key, version, error = json.loads(line)
                if error == "BrokenError":
                    broken += 1
                    if broken > 50:
                        continue
                    time.sleep(0.002)
                    server.stdin.write(by_name[name].request())  # the same one again
                    server.stdin.flush()
                    continue
                late += broken > 0
                first = first or time.perf_counter() - started
                by_name[name].receive(key, version)
                server.stdin.write(by_name[name].request())
                server.stdin.flush()
        except BrokenPipeError:
            pass
        killer.join()
        server.wait()
        with contextlib.suppress(BrokenPipeError):
            server.stdin.close()
    return {"ready": ready, "first": first, "broken": broken, "late": late}


class Acknowledged(Protocol):
    """A client that remembers the versions that were acknowledged to it, by key."""

    acknowledged: dict[str, int]


def compare(folder: Path, clients: Sequence[Acknowledged], *, whole: bool = True) -> dict[str, Any]:
    """Count acknowledged events that are lost or doubled, gaps, and other problems.

    whole: also compute the labels again from all events. Clients may write meanwhile.
    """
    if not (folder / "labels.db").exists():  # killed before anything
        return {"lost": 0, "doubled": 0, "gaps": 0, "problems": [], "events": 0}
    acknowledged = [pair for client in clients for pair in client.acknowledged.copy().items()]
    with Reader(folder) as reader:
        rows = reader.rows("select version, key from event order by version")
        problems = check(reader) if whole else []
    keys = Counter(key for _, key in rows)
    stored = {key: version for version, key in rows}
    lost = sum(stored.get(key) != version for key, version in acknowledged)
    versions = [version for version, _ in rows]
    return {
        "lost": lost,
        "doubled": sum(count > 1 for count in keys.values()),
        "gaps": sum(a != b for a, b in zip(versions, range(1, len(versions) + 1), strict=True)),
        "problems": problems,
        "events": len(rows),
    }


def prove(kills: int, seed: int, place: Path, clients: int = CLIENTS) -> dict[str, Any]:
    """Kill a server many times on one folder, and compare after each kill."""
    folder = place / "run"
    folder.mkdir()
    draw = random.Random(seed)
    people = [Client(f"c{number}", seed) for number in range(clients)]
    totals: Counter[str] = Counter()
    problems: list[str] = []
    times: list[dict[str, float]] = []
    for number in range(kills):
        limit = draw.randrange(50_000, 500_000) if number % 5 == 4 else 0
        times.append(run_until_killed(folder, people, draw.uniform(0.02, 0.6), limit))
        found = compare(folder, people)
        totals.update({name: found[name] for name in ("lost", "doubled", "gaps")})
        problems += found["problems"]
        print(f"{number + 1} of {kills}: {found}", flush=True)
    answered = [one["first"] for one in times if one["first"]]
    return {
        "kills": kills,
        "acknowledged": sum(len(client.acknowledged) for client in people),
        "events": found["events"],
        **{name: totals[name] for name in ("lost", "doubled", "gaps")},
        "problems": problems,
        "full_disks": sum(one["broken"] > 0 for one in times),
        "acknowledged_after_a_full_disk": sum(one["late"] for one in times),
        "seconds_until_ready": max(one["ready"] for one in times),
        "seconds_until_first_write": max(answered, default=None),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="Seed of moments and requests.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = prove(options.kills, options.seed, Path(place))
    arguments = re.sub(r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(sys.argv[1:]))
    result = {
        "what": "a process that stores labels of several clients is killed (SIGKILL) at random "
        "moments and started again; clients repeat what was not acknowledged with the same key",
        **found,
        "command": f"python proofs/label_log.py {arguments}".strip(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "sqlite": sqlite3.sqlite_version,
        "unimp": __version__,
        "code": code_origin(),
    }
    write_atomically(options.out, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(found, indent=1))
    failed = (
        found["acknowledged_after_a_full_disk"]
        + found["lost"]
        + found["doubled"]
        + found["gaps"]
        + len(found["problems"])
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
