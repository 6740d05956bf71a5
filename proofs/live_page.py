"""Small runs, `unimp serve` as a process, and its page in a browser: for the scenarios of
serve_page.py, which are in page_node.py and page_parts.py."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import unimp

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
RAN = "window.ran = (window.ran || 0) + 1"
HOSTILE = (
    f"<img src=x onerror='{RAN}'>",
    f"<script>{RAN}</script>",
    f"javascript:{RAN}",
    "a/b?c=d#e%2Ff",
    "../../v1/me",
    "ünïcödé 漢字 עברית",
    "x" * 300,
)
CLASSES = ("vcs", "net", "games", "science", "sound", "text", f"<b onclick='{RAN}'>bold</b>")
SETTINGS: dict[str, Any] = {
    "train.epochs": 60,
    "train.lr": 0.01,
    "model.width": 16,
    "model.layers": 2,
    "train.device": "cpu",
    "ensemble.portfolio": "none",
}


def train(folder: Path) -> Path:
    """A run on two tables; every third node has a label."""
    draw = np.random.default_rng(0)
    ids = [f"package-{n}" for n in range(120)] + list(HOSTILE)
    kinds = draw.integers(0, len(CLASSES), len(ids))
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "size", "kind", "label"])
        for n, name in enumerate(ids):
            label = CLASSES[kinds[n]] if n % 3 == 0 and name not in HOSTILE else ""
            size = kinds[n] + draw.normal(0, 0.6)
            table.writerow([name, f"{size:.3f}", CLASSES[(kinds[n] + n % 2) % 7][:12], label])
    pairs = {
        (a, b)
        for a, b in draw.integers(0, len(ids), (1500, 2)).tolist()
        if a < b and (kinds[a] == kinds[b] or draw.random() < 0.05)
    } | {(0, len(ids) - 1 - k) for k in range(len(HOSTILE))}
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        table.writerows((ids[a], ids[b]) for a, b in sorted(pairs))
    task = unimp.task_from_tables(
        folder / "nodes.csv",
        folder / "edges.csv",
        label="label",
        features={"size": "numeric", "kind": "categorical"},
    )
    unimp.run(task, settings=SETTINGS, out=folder / "run", progress=False)
    return folder / "run"


def train_several(folder: Path) -> Path:
    """A run on arrays in which a node may have several labels, and nothing has a name."""
    draw = np.random.default_rng(1)
    x = (draw.random((60, 40)) < 0.2).astype(np.float32)
    edges = draw.integers(0, 60, (2, 200))
    task = unimp.Task(
        "tags",
        unimp.Graph.from_edges(edges, num_nodes=60, x=x),
        np.where(np.arange(60)[:, None] < 10, -1, x[:, :4] > 0).astype(np.int8),
        unimp.Split(np.arange(10, 40), np.arange(40, 50), np.arange(50, 60)),
        "rocauc",
        num_classes=4,
        class_names=("blue", "green", "red", "white"),
    )
    unimp.run(task, settings=SETTINGS, out=folder / "run", progress=False)
    return folder / "run"


@dataclass
class Server:
    """`unimp serve` in a process that can be killed and started again at the same address."""

    folder: Path
    port: int
    token_file: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process without waiting until it answers."""
        command = [sys.executable, "-m", "unimp", "serve", str(self.folder)]
        if self.token_file is not None:
            command += ["--token-file", str(self.token_file)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*command, "--port", str(self.port)], **quiet)

    def start(self) -> None:
        self.launch()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if self.get("/readyz")["reads"]:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError("the server did not become ready within 60 seconds")

    def stop(self, how: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(30)

    @property
    def headers(self) -> dict[str, str]:
        """What shows that a request comes from the admin, or from the page itself."""
        if self.token_file is None:
            return {"Origin": self.address}
        return {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}

    def get(self, path: str) -> Any:
        request = urllib.request.Request(self.address + path, headers=self.headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/nodes/{quote(name, safe='')}")["node"]
        return found

    def send(self, method: str, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), headers, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or "null")

    def token_of(self, name: str, role: str) -> str:
        """Add a person as the admin; returns the token."""
        token: str = self.send("POST", "/v1/people", {"name": name, "role": role})["token"]
        return token

    def label(self, name: str, label: str) -> int:
        """Give a label as another client would; returns its version."""
        path = f"/v1/nodes/{quote(name, safe='')}/label"
        version: int = self.send("PUT", path, {"label": label})["version"]
        return version

    def unlabeled(self, number: int = 1) -> list[str]:
        """Nodes without a label that no scenario has used yet."""
        found = self.get("/v1/nodes?state=unlabeled&q=package-&sort=-confidence&limit=1000")
        return [node["id"] for node in found["nodes"]][:number]


@dataclass
class Seen:
    """What the browser reported while a scenario ran."""

    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    ran: int = 0


class Site:
    """The page in a browser, for one scenario."""

    def __init__(self, browser: Any, server: Server) -> None:
        self._browser, self.server, self.seen = browser, server, Seen()
        self._pages: list[Any] = []
        self._contexts: list[Any] = []
        self._more: list[Server] = []
        self._folders: list[Path] = []

    def folder(self) -> Path:
        """An empty folder that is removed after the scenario."""
        self._folders.append(Path(tempfile.mkdtemp()))
        return self._folders[-1]

    def serve(self, run: Path, *, tokens: bool = False) -> Server:
        """Serve another run for this scenario, which then uses its server."""
        file = self.folder() / "token" if tokens else None
        self.serve_later(Server(run, free_port(), file))
        self.server.start()
        return self.server

    def serve_later(self, server: Server) -> None:
        """Use another server for this scenario; the scenario starts the server."""
        self.server = server
        self._more.append(server)

    def copy(self) -> Path:
        """A copy of the run, without what was labeled."""
        run = self.folder() / "run"
        ignored = shutil.ignore_patterns("labels*", ".labels*", "generation*")
        shutil.copytree(self.server.folder, run, ignore=ignored)
        return run

    def context(self, **options: Any) -> Any:
        context = self._browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}} | options
        )
        context.set_default_timeout(15_000)
        self._contexts.append(context)
        return context

    def open(self, hash_: str = "#/label", context: Any = None) -> Any:
        """A new page at an address of the application."""
        page = (context or self.context()).new_page()
        self._pages.append(page)
        page.on("console", self._printed)
        page.on("pageerror", lambda error: self.seen.console.append(f"exception: {error}"))
        page.on("request", self._requested)
        page.goto(f"{self.server.address}/{hash_}")
        page.wait_for_selector("h1, .sign-in, .empty, .loading, .message", state="attached")
        return page

    def at_node(self, name: str, query: str = "", context: Any = None) -> Any:
        page = self.open(node_hash(name, query), context)
        page.wait_for_selector(".choice")
        return page

    def _printed(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.seen.console.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith(self.server.address + "/"):
            self.seen.elsewhere.append(request.url)

    def close(self) -> None:
        for page in self._pages:
            if not page.is_closed():
                self.seen.ran += page.evaluate("window.ran || 0")
        for context in self._contexts:
            context.close()
        for server in self._more:
            server.stop()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def node_hash(name: str, query: str = "") -> str:
    return f"#/label/{quote(name, safe='')}{query}"


def server_neighbors(server: Server, name: str) -> list[str]:
    found = server.get(f"/v1/nodes/{quote(name, safe='')}/details")["neighbors"]
    return [neighbor["id"] for neighbor in found]


def title(page: Any) -> str:
    text: str = page.inner_text("h1")
    return text


def wait_for(what: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait until a condition holds; raise AssertionError otherwise."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


Scenario = Callable[[Site], None]
SCENARIOS: dict[str, Scenario] = {}
EXPECTED: dict[str, str] = {}
"""Scenario → pattern of the console errors that it is about."""


def scenario(name: str, expected: str = "") -> Callable[[Scenario], Scenario]:
    """Declare a scenario; expected: the browser prints failed requests that match."""

    def declare(function: Scenario) -> Scenario:
        SCENARIOS[name] = function
        if expected:
            EXPECTED[name] = expected
        return function

    return declare
