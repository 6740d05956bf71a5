"""Measure the label service over HTTP: reads, latencies, a large file, the queue and a long run.

    python benchmarks/service.py reads                      reads with wrk while labels arrive
    python benchmarks/service.py latency --task debian      writes, pulls and pushes
    python benchmarks/service.py file                       100,000 labels in one request
    python benchmarks/service.py queue                      20 people label from the queue
    python benchmarks/service.py soak --minutes 30          memory and WAL under a steady load
    UNIMP_DATA=… python benchmarks/service.py latency --task arxiv-labels     the true graph

Each command trains a run for one epoch, because time does not depend on the weights, serves it with
`unimp serve` on the same machine, and adds its figures to results/service.json. `--run FOLDER`
serves a copy of a stored run instead. `debian` is bundled; `arxiv-labels` is the graph of
ogbn-arxiv with three layers of two heads of 128, and `synthetic-arxiv` has its size.

`reads` needs wrk (`apt-get install wrk`, `brew install wrk`), which counts as part of the load. All
commands share the cores of the machine with the service, so nothing else should run on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import unimp
from measure import FOLDER, Figures
from unimp.config.run_files import LABELS

WRK = """
local paths, n = {}, math.random(1000)
for line in io.lines("PATHS") do paths[#paths + 1] = line end
request = function()
  n = n % #paths + 1
  return wrk.format("GET", paths[n])
end
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format("\\nFOUND %d %d %f %f %f\\n", summary.requests,
    e.connect + e.read + e.write + e.status + e.timeout, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""
CONNECTIONS, LABELS_PER_SECOND = 32, 5
PEOPLE, THINKING = 20, 1.0  # seconds per label, on average
MANY, FILE = 1_000, 100_000
PENDING, PAGE = 10, 50
KIB, MIB = 1 << 10, 1 << 20


class Client:
    """A connection that is kept open; a response other than 2xx is an error."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Origin": f"http://127.0.0.1:{port}"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        data = json.dumps(body).encode() if kind == "application/json" else body
        headers = {**self._headers, **({} if body is None else {"Content-Type": kind})}
        self._connection.request(method, path, None if body is None else data, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:500]!r}")
        found: dict[str, Any] = json.loads(text)
        return found

    def label(self, node: str, label: str) -> int:
        path = f"/v1/nodes/{quote(node, safe='')}/label"
        return int(self.ask("PUT", path, {"label": label})["version"])

    def node(self, node: str, query: str = "") -> dict[str, Any]:
        return self.ask("GET", f"/v1/nodes/{quote(node, safe='')}{query}")

    def until_published(self, version: int, node: str, pause: float = 0.002) -> None:
        while self.node(node)["version"] < version:
            time.sleep(pause)


@dataclass
class Served:
    """A running service, with the ids and classes of its run."""

    folder: Path
    port: int
    front: int  # process numbers
    token: str | None
    ids: list[str]
    classes: list[str]
    about: str

    def client(self, token: str | None = None) -> Client:
        return Client(self.port, token or self.token)

    @property
    def engine(self) -> int:
        path = Path(f"/proc/{self.front}/task/{self.front}/children")
        return int(path.read_text().split()[0])


def train(task: str, folder: Path) -> Path:
    """A run with weights of one epoch."""
    settings = {"train.epochs": 1, "train.device": "cpu", "ensemble.portfolio": "none"}
    unimp.run(task, settings=settings, out=folder / "run", progress=False)
    return folder / "run"


@contextmanager
def served(arguments: argparse.Namespace, *, tokens: bool = False) -> Iterator[Served]:
    """Serve a run until the block ends. tokens: requests need the token of the admin."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.scratch)))
        if arguments.run is None:
            folder = train(arguments.task, scratch)
        else:
            folder = scratch / "run"
            shutil.copytree(arguments.run, folder, ignore=shutil.ignore_patterns("labels*"))
        command = [sys.executable, "-m", "unimp", "serve", str(folder), "--port", "0"]
        if tokens:
            command += ["--token-file", str(scratch / "token")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.communicate, timeout=30)
        stack.callback(process.terminate)
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://" in line)
        port = int(re.findall(r":(\d+)/", line)[0])
        next(line for line in process.stdout if line.startswith("ready"))
        token = (scratch / "token").read_text().strip() if tokens else None
        client = Client(port, token)
        model = client.ask("GET", "/v1/model")
        nodes, edges = model["num_nodes"], model["num_edges"]
        about = f"{model['task']}, {nodes:,} nodes, {edges:,} in-edges, {model['parameters']:,} "
        yield Served(
            *(folder, port, process.pid, token, _ids(client, nodes), model["classes"]),
            about + "parameters",
        )


def _ids(client: Client, count: int) -> list[str]:
    pages = (
        client.ask("GET", f"/v1/nodes?limit=1000&offset={offset}")["nodes"]
        for offset in range(0, count, 1000)
    )
    return [node["id"] for page in pages for node in page]


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return KIB * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def processor(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def repeated(per_second: float, call: Callable[[], object]) -> Iterator[list[float]]:
    """Call a function at a steady rate in a thread; yield the seconds that each call took."""
    stop, taken, errors = threading.Event(), [], list[BaseException]()

    def work() -> None:
        began = time.monotonic()
        for number in itertools.count():
            if stop.wait(max(0.0, began + number / per_second - time.monotonic())):
                return
            start = time.perf_counter()
            try:
                call()
            except BaseException as error:
                errors.append(error)
                return
            taken.append(time.perf_counter() - start)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield taken
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def add_times(figures: Figures, name: str, taken: list[float], what: str, *aims: str) -> None:
    """Add the median and the 99th percentile of some seconds."""
    for share, aim in itertools.zip_longest((50, 99), aims, fillvalue=""):
        value = float(np.quantile(taken, share / 100))
        figures.add(f"{name}-p{share}-s", value, f"s, {what}; {len(taken)} times", aim)


def reads(arguments: argparse.Namespace, figures: Figures) -> None:
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed. Run: apt-get install wrk (or: brew install wrk)")
    with served(arguments) as service, tempfile.TemporaryDirectory() as scratch:
        draw, client = random.Random(0), service.client()
        paths, script = Path(scratch, "paths"), Path(scratch, "reads.lua")
        chosen = draw.sample(service.ids, min(len(service.ids), 10_000))
        paths.write_text("\n".join(f"/v1/nodes/{quote(name, safe='')}" for name in chosen))
        script.write_text(WRK.replace("PATHS", str(paths)))

        def label() -> None:
            client.label(draw.choice(service.ids), draw.choice(service.classes))

        def wrk(seconds: int) -> list[float]:
            words = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script)]
            command = [*words, f"http://127.0.0.1:{service.port}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return [float(x) for x in re.findall(r"FOUND (.*)", done.stdout)[0].split()]

        wrk(2)
        before = processor(service.front)
        with repeated(LABELS_PER_SECOND, label) as taken:
            requests, errors, seconds, median, slow = wrk(arguments.seconds)
        used = processor(service.front) - before
        what = (
            f"GET /v1/nodes/{{id}}, {CONNECTIONS} connections of wrk, {arguments.seconds} s, while "
            f"{len(taken) / seconds:.1f} labels per second arrive, {service.about}"
        )
        figures.add("reads-per-s", requests / seconds, f"reads per second: {what}", "≥ 5000")
        figures.add("reads-p50-ms", median, f"ms, median: {what}")
        figures.add("reads-p99-ms", slow, f"ms, 99th percentile: {what}", "≤ 25")
        figures.add("reads-errors", errors, f"failed reads: {what}", "0")
        figures.add("reads-cpu-us", 1e6 * used / requests, f"µs of the front per read: {what}")
        add_times(figures, "reads-label", taken, f"a label is acknowledged meanwhile: {what}")


def latency(arguments: argparse.Namespace, figures: Figures) -> None:
    with served(arguments) as service:
        draw, client, prefix = random.Random(0), service.client(), f"{arguments.task}-http"
        seen = service.ids[0]

        def some_labels(count: int) -> dict[str, Any]:
            nodes = draw.sample(service.ids, count)
            return {"labels": [{"node": n, "label": draw.choice(service.classes)} for n in nodes]}

        def store(count: int) -> int:
            return int(client.ask("POST", "/v1/labels", some_labels(count))["version"])

        def timed(call: Callable[[int], object], labels: int, repeats: int) -> list[float]:
            """Store labels, time a call with their version, and wait until it is published."""
            found = []
            for number in range(repeats + 1):
                version = store(labels or 1 + number % PENDING)
                began = time.perf_counter()
                call(version)
                found.append(time.perf_counter() - began)
                client.until_published(version, seen)
            return found[1:]

        def pull(version: int) -> None:
            client.node(draw.choice(service.ids), f"?min_version={version}")

        def page(version: int) -> None:
            ids = draw.sample(service.ids, PAGE)
            client.ask("POST", f"/v1/predict?min_version={version}", {"ids": ids})

        def push(version: int) -> None:
            client.until_published(version, seen)

        repeats, of, arxiv = arguments.repeats, service.about, "arxiv" in arguments.task
        acknowledged = []
        for _ in range(repeats):
            began = time.perf_counter()
            version = client.label(draw.choice(service.ids), draw.choice(service.classes))
            acknowledged.append(time.perf_counter() - began)
            client.until_published(version, seen)
        add_times(figures, f"{prefix}-ack", acknowledged, f"a label is stored, {of}", "", "≤ 0.03")
        for name, call, labels, count, aims in (
            ("pull-1", pull, 0, repeats, ("", "≤ 0.05")),
            (f"pull-{PAGE}", page, 0, repeats, ("", "≤ 0.1")),
            ("push-label", push, 1, repeats, ("≤ 0.2", "≤ 0.4")),
            (f"push-{MANY}-labels", push, MANY, max(3, repeats // 20), ("≤ 5", "≤ 5")),
        ):
            what = {
                "pull": f"exact answer right after 1 to {PENDING} labels",
                "push": "all predictions are published after the acknowledgment",
            }[name[:4]]
            found = timed(call, labels, count)
            shown = aims if arxiv else ()
            add_times(figures, f"{prefix}-{name}", found, f"{name}: {what}, {of}", *shown)
        for name, pid in (("front", service.front), ("engine", service.engine)):
            figures.add(f"{prefix}-{name}-mib", resident(pid) / MIB, f"MiB of the {name}, {of}")


def file(arguments: argparse.Namespace, figures: Figures) -> None:
    with served(arguments) as service:
        draw, client = random.Random(0), service.client()
        count = min(FILE, 3 * len(service.ids) // 4)
        nodes = draw.sample(service.ids, count)
        given = {node: draw.choice(service.classes) for node in nodes}
        body = "node,label\n" + "".join(f'"{n}","{la}"\n' for n, la in given.items())
        other, seen = service.client(), service.ids[0]
        with repeated(20, lambda: other.node(seen)) as waits:
            began = time.perf_counter()
            version = client.ask("POST", "/v1/labels", body.encode(), "text/csv")["version"]
            stored = time.perf_counter()
            client.until_published(version, seen, pause=0.05)
            published = time.perf_counter()
        what = f"{count:,} labels in one file, {service.about}"
        figures.add("file-acknowledged-s", stored - began, f"s until {what} are stored", "≤ 20")
        figures.add("file-exact-s", published - stored, f"s until they are published: {what}")
        figures.add("file-slowest-read-s", max(waits), f"s, slowest read meanwhile: {what}")
        figures.add(
            "file-difference",
            _difference(service, given, draw),
            f"largest difference between a published probability and a cold prediction: {what}",
            "≤ 1e-5",
        )


def _difference(service: Served, given: dict[str, str], draw: random.Random) -> float:
    """The largest difference to a prediction that knows nothing of the service."""
    run = unimp.load_run(service.folder)
    observed = run.observed_labels()
    numbers = {name: number for number, name in enumerate(service.ids)}
    classes = {name: number for number, name in enumerate(service.classes)}
    for node, label in given.items():
        observed[numbers[node]] = classes[label]
    chances = run.probabilities_of(run.outputs(observed))
    free = [name for name in service.ids if observed[numbers[name]] < 0]
    ids = draw.sample(free, min(len(free), 1_000))
    rows = service.client().ask("POST", "/v1/predict", {"ids": ids})["nodes"]
    return max(
        abs(float(chances[numbers[row["id"]], classes[one["class"]]]) - one["probability"])
        for row in rows
        for one in row["classes"]
    )


def queue(arguments: argparse.Namespace, figures: Figures) -> None:
    with served(arguments, tokens=True) as service:
        admin = service.client()
        tokens = [
            admin.ask("POST", "/v1/people", {"name": f"labeler {n}", "role": "labeler"})["token"]
            for n in range(PEOPLE)
        ]
        admin.ask("POST", "/v1/queue/next")  # the first suggestions are computed
        held, lock, stop = dict[str, int](), threading.Lock(), threading.Event()
        taken, doubled, labeled, errors = [], list[str](), list[str](), list[BaseException]()

        def person(number: int) -> None:
            draw, client = random.Random(number), service.client(tokens[number])
            try:
                while not stop.wait(draw.uniform(0, 2 * THINKING)):
                    began = time.perf_counter()
                    item = client.ask("POST", "/v1/queue/next")["item"]
                    seconds = time.perf_counter() - began
                    name = item["node"]["id"]
                    with lock:
                        taken.append(seconds)
                        if name in held:
                            doubled.append(name)
                        held[name] = number
                    stop.wait(draw.uniform(0, 2 * THINKING))
                    with lock:
                        del held[name]
                        labeled.append(name)
                    client.label(name, draw.choice(service.classes))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=person, args=(n,)) for n in range(PEOPLE)]
        for thread in threads:
            thread.start()
        time.sleep(arguments.seconds)
        stop.set()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        what = (
            f"{PEOPLE} labelers, {len(labeled) / arguments.seconds:.1f} labels per second, "
            f"{arguments.seconds} s, {service.about}"
        )
        twice = len(doubled) + len(labeled) - len(set(labeled))
        figures.add("queue-twice", twice, f"nodes that two of {what} got", "0")
        add_times(figures, "queue-next", taken, f"POST /v1/queue/next, {what}", "", "≤ 0.3")


def soak(arguments: argparse.Namespace, figures: Figures) -> None:
    with served(arguments) as service:
        draw, reader, writer = random.Random(0), service.client(), service.client()

        def label() -> None:
            writer.label(draw.choice(service.ids), draw.choice(service.classes))

        wal = service.folder / f"{LABELS}-wal"
        samples: list[tuple[float, int, int, int]] = []
        began, seconds = time.monotonic(), 60 * arguments.minutes
        with (
            repeated(100, lambda: reader.node(draw.choice(service.ids))) as taken,
            repeated(1, label) as acknowledged,
        ):
            while (now := time.monotonic() - began) < seconds:
                size = wal.stat().st_size if wal.exists() else 0
                samples.append((now, resident(service.front), resident(service.engine), size))
                time.sleep(min(1.0, seconds / 100))
        # Caches fill and the allocator settles in the first tenth.
        first = [s for s in samples if 0.1 * seconds <= s[0] < 0.2 * seconds]
        last = [s for s in samples if s[0] >= 0.9 * seconds]
        what = (
            f"{arguments.minutes:g} minutes with {len(taken) / seconds:.0f} reads and "
            f"{len(acknowledged) / seconds:.1f} labels per second, {service.about}"
        )
        total = 0.0
        for place, name in ((1, "front"), (2, "engine")):
            grown = float(
                np.median([s[place] for s in last]) - np.median([s[place] for s in first])
            )
            total += grown
            figures.add(f"soak-{name}-mb", grown / 1e6, f"MB that the {name} has grown by: {what}")
        figures.add("soak-mb", total / 1e6, f"MB, both together: {what}", "≤ 50")
        figures.add("soak-wal-mb", max(s[3] for s in samples) / 1e6, f"MB of WAL: {what}", "≤ 64")
        add_times(figures, "soak-read", taken, f"a read: {what}")
        add_times(figures, "soak-label", acknowledged, f"a label is acknowledged: {what}")


COMMANDS = {"reads": reads, "latency": latency, "file": file, "queue": queue, "soak": soak}
TASKS = {"file": "synthetic-arxiv"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--task", help="debian, synthetic-arxiv or arxiv-labels.")
    parser.add_argument("--run", type=Path, help="A run folder to serve a copy of.")
    parser.add_argument("--seconds", type=int, default=30, help="Of reads and queue.")
    parser.add_argument("--minutes", type=float, default=30, help="Of soak.")
    parser.add_argument("--repeats", type=int, default=100, help="Of latency.")
    parser.add_argument("--scratch", type=Path, help="Where the service stores; the disk matters.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.task = arguments.task or TASKS.get(arguments.command, "debian")
    COMMANDS[arguments.command](arguments, Figures("service", arguments.out))


if __name__ == "__main__":
    main()
