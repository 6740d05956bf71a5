"""A small run, `unimp serve` as processes that can be killed, and HTTP clients: for the proofs of
the whole service (serve_kills.py, serve_stopped.py, serve_histories.py and serve_disk.py)."""

from __future__ import annotations

import csv
import http.client
import json
import os
import platform
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

import unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results"
CLASSES = ("red", "green", "blue")
NODES = 300
SETTINGS: dict[str, Any] = {
    "train.epochs": 5,
    "model.width": 8,
    "model.layers": 2,
    "train.device": "cpu",
    "ensemble.portfolio": "none",
}
START = 180.0
"""Seconds in which a service must be ready, or a proof ends with an error."""
PAUSE = 0.02
"""Seconds between two attempts of a client, and between two looks at a service."""


def node_name(number: int) -> str:
    return f"n{number}"


def train(folder: Path, nodes: int = NODES) -> Path:
    """A run on two small tables, in which every fourth node has a label."""
    draw = random.Random(0)
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "size", "label"])
        for n in range(nodes):
            label = CLASSES[n % len(CLASSES)] if n % 4 == 0 else ""
            table.writerow([node_name(n), f"{n % len(CLASSES) + draw.gauss(0, 1):.3f}", label])
    pairs = {tuple(sorted(draw.sample(range(nodes), 2))) for _ in range(3 * nodes)}
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        table.writerows((node_name(a), node_name(b)) for a, b in sorted(pairs))
    task = unimp.task_from_tables(
        folder / "nodes.csv", folder / "edges.csv", label="label", features={"size": "numeric"}
    )
    unimp.run(task, settings=SETTINGS, out=folder / "run", progress=False)
    return folder / "run"


@dataclass(frozen=True)
class Answer:
    """An HTTP response; `status` is 0 if none arrived."""

    status: int
    body: Any = None
    retry_after: str | None = None
    etag: str | None = None

    @property
    def problem(self) -> str:
        """The kind of the problem of an error, such as "broken"."""
        kind = self.body.get("type", "") if isinstance(self.body, dict) else ""
        return str(kind).rpartition(":")[2]


class Connection:
    """A connection of one client, which is opened again after every failure."""

    def __init__(self, port: int, timeout: float = 15.0) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._origin = f"http://127.0.0.1:{port}"

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; `Idempotency_Key` and similar names are headers."""
        sent = {"Origin": self._origin, "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            self._http.request(method, path, None if body is None else json.dumps(body), sent)
            response = self._http.getresponse()
            content = response.read()
            found = json.loads(content) if content else None
        except (OSError, http.client.HTTPException, ValueError):
            self._http.close()
            return Answer(0)
        given = response.headers
        return Answer(response.status, found, given["Retry-After"], given["ETag"])

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass
class Server:
    """`unimp serve` on a run folder, always at the same port."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = self.folder.parent / f"{self.folder.name}.log"

    def start(self) -> None:
        """Start the front, which starts the engine; do not wait for either."""
        command = [sys.executable, "-m", "unimp", "serve", str(self.folder)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **self.env}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=log, env=env
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self, module: str) -> list[int]:
        """The process ids of the engines or trainers of the front."""
        try:
            found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:  # it has just ended
            return []
        return [pid for pid in map(int, found) if module in words_of(pid)]

    @property
    def engine(self) -> int | None:
        """The process id of the engine of the run itself; None while there is none."""
        found = self.children("unimp.serving.engine")
        return next((pid for pid in found if str(self.folder) in words_of(pid)[-2:]), None)

    def end(self, how: int = signal.SIGKILL) -> None:
        """End the front with a signal, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(30)

    def states(self, connection: Connection) -> dict[str, Any]:
        """What /readyz reports; empty if it does not answer."""
        body = connection.send("GET", "/readyz").body
        return body if isinstance(body, dict) else {}

    def is_ready(self, connection: Connection) -> bool:
        """Whether writes and exact reads work: the engine is loaded too."""
        found = self.states(connection)
        return bool(
            found.get("writes") and found.get("reads") and found["engine"] in ("ready", "behind")
        )

    def wait_until_ready(self, seconds: float = START) -> None:
        def is_ready() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                printed = self.log.read_text(errors="replace")[-2_000:]
                raise AssertionError(f"the service ended: {printed}")
            return self.is_ready(connection)

        with Connection(self.port) as connection:
            wait_for(is_ready, seconds, "the service is not ready")

    def tracebacks(self) -> int:
        """The number of tracebacks that the processes printed."""
        return self.log.read_text(errors="replace").count("Traceback (most recent call last)")


@contextmanager
def serving(folder: Path, **env: str) -> Iterator[Server]:
    """A service that is ready; it and all its processes are ended afterwards."""
    server = Server(folder, env)
    server.start()
    try:
        server.wait_until_ready()
        yield server
    finally:
        assert server.process is not None
        if server.process.poll() is None:
            server.end()
        for module in ("unimp.serving.engine", "unimp.serving.trainer"):
            for pid in processes(module, folder):
                send_signal(pid, signal.SIGKILL)


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def processes(module: str, folder: Path) -> list[int]:
    """The ids of all processes of a module of the service on a run folder."""
    found = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return [pid for pid in found if {module, str(folder)} <= {*words_of(pid)}]


def send_signal(pid: int | None, number: int) -> bool:
    """Send a signal; return whether the process was there."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_for(what: Callable[[], Any], seconds: float, problem: str) -> float:
    """Wait until a condition holds; return how many seconds that took."""
    began = time.monotonic()
    while not what():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"{problem} after {seconds:g} s")
        time.sleep(PAUSE)
    return time.monotonic() - began


def summary_of(values: list[float]) -> dict[str, float]:
    """Median and maximum of measured seconds."""
    if not values:
        return {}
    return {
        "count": len(values),
        "median": round(median(values), 3),
        "maximum": round(max(values), 3),
    }


def write_result(path: Path, script: str, what: str, found: dict[str, Any]) -> None:
    """Store the outcome of a proof with the commit, the hardware and the command."""
    arguments = re.sub(r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(sys.argv[1:]))
    result = {
        "what": what,
        **found,
        "command": f"python proofs/{script} {arguments}".strip(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[1], 1),  # processes that wanted a core
        "sqlite": sqlite3.sqlite_version,
        "unimp": unimp.__version__,
        "code": code_origin(),
    }
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(found, indent=1))
