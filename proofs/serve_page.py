"""Use the page of the live label service in a real browser, one scenario at a time.

    python proofs/serve_page.py [NAME ...]        → proofs/results/serve_page.json
    python proofs/serve_page.py --pictures FOLDER
    python proofs/serve_page.py --documents       → docs/images/serve.png, serve-phone.png

A run is trained on two small tables in which ids, classes and columns contain markup, and served by
`unimp serve`. Each scenario opens the page in Chromium and does what a person does, mostly with the
keyboard. It checks what the page shows and what the service has stored. In every scenario, no
script of an id may run, no request may leave the server, and the console may contain no error,
except for the failed requests that the scenario is about.

The browser needs `pip install playwright` and a Chromium on the path.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "serve_page.json"
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
WIDTHS = ((1440, 900), (768, 1024), (360, 740))


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


@scenario("the queue hands out a node")
def queue_starts(site: Site) -> None:
    page = site.open("")
    page.wait_for_selector(".choice")
    name = title(page)
    assert quote(name, safe="") in page.url, page.url
    assert site.server.node(name)["label"] is None
    assert any(item["node"]["id"] == name for item in site.server.get("/v1/queue/mine")["items"])


@scenario("label by key")
def label_by_key(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name, second = title(page), page.locator(".choice .name").nth(1).inner_text()
    page.keyboard.press("2")
    wait_for(lambda: site.server.node(name)["label"] == second)
    wait_for(lambda: title(page) != name)
    assert second in page.inner_text(".message")


@scenario("agree with Enter")
def agree(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name, first = title(page), page.locator(".choice .name").first.inner_text()
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == first)


@scenario("undo with U")
def undo(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("1")
    wait_for(lambda: site.server.node(name)["label"] is not None)
    page.wait_for_selector(".message >> text=Undo")
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(name)["label"] is None)
    wait_for(lambda: title(page) == name)


@scenario("search a class")
def search_class(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type("scien")
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == "science")


@scenario("skip")
def skip(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("s")
    wait_for(lambda: title(page) != name)
    events = site.server.get("/v1/log?kind=skip")["events"]
    assert events[0]["node"] == name
    assert site.server.node(name)["label"] is None


@scenario("write a note")
def note(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("n")
    page.wait_for_selector("textarea")
    page.keyboard.type("1 of <b>two</b>")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("text=“1 of <b>two</b>”")
    assert site.server.node(name)["label"] is None, "a key in the note was taken as an answer"


@scenario("two pages in conflict", "412")
def conflict(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page, other = site.at_node(name), site.at_node(name)
    mine = page.locator(".choice .name").first.inner_text()
    theirs = other.locator(".choice .name").nth(1).inner_text()
    other.keyboard.press("2")
    wait_for(lambda: site.server.node(name)["label"] == theirs)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type(mine)
    page.keyboard.press("Enter")
    page.wait_for_selector("#conflict")
    words = page.inner_text("#conflict")
    assert mine in words, words
    assert theirs in words, words
    assert site.server.node(name)["label"] == theirs
    page.click(f"text=Change it to {mine}")
    wait_for(lambda: site.server.node(name)["label"] == mine)


@scenario("hostile ids and classes")
def hostile_ids(site: Site) -> None:
    context = site.context()
    for name in HOSTILE:
        page = site.at_node(name, context=context)
        assert title(page) == name
        page.wait_for_selector(".why .reasons a")
        page.locator(".choice").nth(1).focus()
        page.wait_for_selector(".what-if >> text=If you choose")
        page.close()
    page = site.open("#/table?q=%3C", context)
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").count() == 2
    page.locator("tbody tr a").first.click()
    page.wait_for_selector(".choice")
    name = title(page)
    assert name in HOSTILE
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type("bold")
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == CLASSES[-1])
    page.goto(f"{site.server.address}/#/log")
    page.wait_for_selector(f"tbody >> text={CLASSES[-1]}")


@scenario("offline and back", "ERR_INTERNET_DISCONNECTED")
def offline(site: Site) -> None:
    (name,) = site.server.unlabeled()
    context = site.context()
    page = site.at_node(name, context=context)
    page.wait_for_selector(".live.is-live")
    context.set_offline(True)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    assert site.server.node(name)["label"] is None
    context.set_offline(False)
    wait_for(lambda: site.server.node(name)["label"] is not None)
    page.wait_for_selector(".live.is-live")
    page.wait_for_selector(".banner", state="detached")
    events = site.server.get(f"/v1/log?kind=label&node={quote(name)}")["events"]
    assert len(events) == 1, "the answer was stored twice"


@scenario("the server is killed and starts again", "ERR_|503|Failed to load")
def restart(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".live.is-live")
    site.server.stop(signal.SIGKILL)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    site.server.start()
    wait_for(lambda: site.server.node(name)["label"] is not None, 30)
    page.wait_for_selector(".live.is-live")


@scenario("the page waits while the model is loading", "503")
def loading(site: Site) -> None:
    server = Server(site.copy(), free_port())
    site.serve_later(server)
    server.launch()
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

    def engines() -> list[int]:
        """The engine, once its program runs. Before that, the server waits and does not answer."""
        found = [int(pid) for pid in children.read_text().split()]
        name = b"unimp.serving.engine"
        return [pid for pid in found if name in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (engine,) = wait_for(engines)
    os.kill(engine, signal.SIGSTOP)
    page = site.open()
    page.wait_for_selector("text=The model is loading")
    os.kill(engine, signal.SIGCONT)
    page.wait_for_selector(".choice", timeout=60_000)


@scenario("bulk labels with a confirmation")
def bulk(site: Site) -> None:
    names = site.server.unlabeled(3)
    page = site.open("#/table?state=unlabeled&sort=-confidence&q=package-")
    page.wait_for_selector("tbody tr")
    for name in names:
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.wait_for_selector("dialog")
    assert all(site.server.node(name)["label"] is None for name in names), "stored without a yes"
    page.click("dialog >> text=Store 3 labels")
    wait_for(lambda: all(site.server.node(name)["label"] == "games" for name in names))
    page.click("text=Undo all")
    wait_for(lambda: all(site.server.node(name)["label"] is None for name in names))


@scenario("bulk labels for all nodes of a filter")
def bulk_by_filter(site: Site) -> None:
    server = site.serve(site.copy())
    names = server.unlabeled(1000)
    page = site.open("#/table?state=unlabeled&q=package-")
    page.get_by_label("Choose all nodes of this page", exact=True).check()
    page.click(f"text=Choose all {len(names)}")
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.click(f"dialog >> text=Store {len(names)} labels")
    wait_for(lambda: not server.unlabeled())
    assert all(server.node(name)["label"] == "games" for name in names)


@scenario("the nodes of a filter join those that are chosen already")
def choose_by_filter(site: Site) -> None:
    server = site.serve(site.copy())
    held: list[Any] = []
    (name,) = server.unlabeled()
    page = site.open(f"#/table?q={name}")
    box = page.get_by_label(f"Choose {name}", exact=True)
    box.check()
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.click("dialog >> text=Store 1 label")
    page.wait_for_selector("text=1 label stored")
    box.check()  # it has a label now, so the next filter does not contain it
    number = len(server.unlabeled(1000))
    page.goto(f"{server.address}/#/table?state=unlabeled&q=package-")
    page.wait_for_selector(f"text=of {number}")
    all_boxes = page.get_by_label("Choose all nodes of this page", exact=True)
    all_boxes.check()
    page.wait_for_selector("text=51 nodes chosen")
    state = page.locator("label:has-text('State') select")
    page.route("**/v1/nodes?*limit=1000*", lambda route: held.append(route))
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("tbody input:disabled")
    while not held:
        page.wait_for_timeout(20)
    assert all_boxes.is_disabled(), "a box could be changed while nodes are chosen"
    assert "min_version=" in held[0].request.url, "the page does not wait for what it wrote"
    # The filter changes before the answer arrives.
    state.select_option("labeled")
    page.wait_for_selector("tbody input:enabled")
    with suppress(Exception):  # the page has cancelled the request
        held[0].continue_()
    page.unroute("**/v1/nodes?*limit=1000*")
    page.wait_for_timeout(500)
    assert "51 nodes chosen" in page.inner_text(".bulk"), "nodes of the old filter were chosen"

    def several_versions(route: Any) -> None:
        """Answer as if there were more nodes, and a prediction changed between two requests."""
        response = route.fetch()
        body = response.json() | {"total": 1001}
        body["version"] += "offset=1000" in route.request.url
        route.fulfill(response=response, json=body)

    state.select_option("unlabeled")
    page.route("**/v1/nodes?*limit=1000*", several_versions)
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("text=some may be missing")
    page.unroute("**/v1/nodes?*limit=1000*")
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("text=some may be missing", state="detached")
    words = page.inner_text(".bulk")
    assert f"{number} matching nodes found" in words, words
    assert f"{number + 1} nodes chosen" in words, words


@scenario("audit: accept and keep")
def audit(site: Site) -> None:
    page = site.open("#/audit")
    page.wait_for_selector(".audit-row", timeout=60_000)
    doubts = site.server.get("/v1/audit?limit=2")["doubts"]
    rows = page.locator(".audit-row")
    rows.nth(0).focus()
    page.keyboard.press("a")
    wait_for(lambda: site.server.node(doubts[0]["node"])["label"] == doubts[0]["suggested"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    page.wait_for_selector(f"text=Kept {doubts[1]['given']}")
    assert site.server.node(doubts[1]["node"])["label"] == doubts[1]["given"]
    rows.nth(0).focus()
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(doubts[0]["node"])["label"] == doubts[0]["given"])


@scenario("deep links")
def deep_links(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name, "?queue=doubtful")
    assert title(page) == name
    assert page.locator(".lists [aria-current]").inner_text() == "Doubtful"
    page = site.open("#/table?state=labeled&label=vcs&sort=-confidence")
    page.wait_for_selector("tbody tr")
    assert page.locator("label:has-text('State') select").input_value() == "labeled"
    labels = page.locator("tbody .chip").all_inner_texts()
    assert set(labels) == {"vcs"}, labels
    page.go_back()


@scenario("an unknown node", "404")
def unknown(site: Site) -> None:
    page = site.open(node_hash("no such node"))
    page.wait_for_selector(".message.bad >> text=no such node")


@scenario("the effect of a choice")
def what_if(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.locator(".choice").nth(1).focus()
    page.wait_for_selector(".what-if >> text=If you choose")
    page.locator(".choice").nth(2).hover()
    third = page.locator(".choice .name").nth(2).inner_text()
    page.wait_for_selector(f".what-if b >> text={third}")
    assert site.server.node(name)["label"] is None


@scenario("a doubted answer gets a hint")
def doubted(site: Site) -> None:
    (name,) = site.server.unlabeled()
    node = site.server.node(name)
    assert node["confidence"] >= 0.5, "the model is not sure about any node"
    page = site.at_node(name)
    page.keyboard.press("2")
    page.wait_for_selector(".message.doubt >> text=The rest of the graph doubts it")
    assert node["prediction"] in page.inner_text(".message.doubt")


@scenario("why: picture, labels and neighbors")
def why(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".picture img")
    wait_for(lambda: page.evaluate("document.querySelector('.picture img').naturalWidth > 0"))
    link = page.locator(".why .reason a").last
    neighbor = link.inner_text()
    link.click()
    wait_for(lambda: title(page) == neighbor)


@scenario("live changes of another person")
def live(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".live.is-live")
    site.server.label(name, "sound")
    page.wait_for_selector("text=changed while you had it open")
    assert "sound" in page.inner_text(".node-head")


@scenario("undo in the log")
def log_undo(site: Site) -> None:
    (name,) = site.server.unlabeled()
    version = site.server.label(name, "text")
    page = site.open(f"#/log?node={name}")
    page.get_by_label(f"Undo version {version}", exact=True).click()
    wait_for(lambda: site.server.node(name)["label"] is None)


@scenario("withdraw a source in the log")
def withdraw(site: Site) -> None:
    names = site.server.unlabeled(2)
    labels = [{"node": name, "label": "vcs"} for name in names]
    site.server.send("POST", "/v1/labels", {"labels": labels, "source": f"rule {RAN}"})
    page = site.open("#/log")
    page.click(f"text=rule {RAN}")  # the source is a text, not a link
    page.click("text=Withdraw source…")
    page.wait_for_selector("dialog >> text=one event")
    page.click("dialog >> text=Withdraw >> nth=-1")
    wait_for(lambda: all(site.server.node(name)["label"] is None for name in names))
    page.wait_for_selector("text=withdrew the source")
    page.click("[aria-label^='Undo version'] >> nth=0")
    wait_for(lambda: all(site.server.node(name)["label"] == "vcs" for name in names))


@scenario("search nodes")
def search_nodes(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    page.keyboard.press("f")
    page.keyboard.type("package-11")
    wait_for(lambda: page.locator(".items li").count() == 11)
    page.locator(".items a").nth(2).click()
    page.wait_for_selector(".choice")
    assert title(page).startswith("package-11")
    assert "q=package-11" in page.url


@scenario("model: what the server does not offer")
def model(site: Site) -> None:
    page = site.open("#/model")
    page.wait_for_selector("text=Generations")
    offered = "/v1/retrain" in site.server.get("/openapi.json")["paths"]
    words = "Train on the labels so far" if offered else "does not offer training yet"
    page.wait_for_selector(f"text={words}")


@scenario("people: add, change and revoke")
def people(site: Site) -> None:
    page = site.open("#/people")
    page.get_by_label("Name", exact=True).fill("<i>bo</i>")
    page.click("form >> text=Add >> nth=-1")
    page.wait_for_selector("text=The token of")
    page.get_by_label("Role of <i>bo</i>", exact=True).select_option("reviewer")

    def found() -> dict[str, Any]:
        return {p["name"]: p for p in site.server.get("/v1/people")["people"]}["<i>bo</i>"]

    wait_for(lambda: found()["role"] == "reviewer")
    page.click("tr:has-text('<i>bo</i>') >> text=Revoke")
    wait_for(lambda: found()["revoked"])


@scenario("themes")
def themes(site: Site) -> None:
    page = site.open("#/model", site.context(color_scheme="dark"))
    page.wait_for_selector(".tile")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_label("Switch between light and dark").click()
    light = page.evaluate(background)
    assert dark != light
    page.reload()
    page.wait_for_selector(".tile")
    assert page.evaluate(background) == light, "the choice was not kept"


@scenario("phone width")
def phone(site: Site) -> None:
    context = site.context(viewport={"width": 360, "height": 740})
    for part in ("label", "table", "audit", "log", "model", "people"):
        page = site.open(f"#/{part}", context)
        page.wait_for_selector("h1")
        page.wait_for_timeout(300)
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{part} is {over} pixels too wide"


@scenario("only the keyboard")
def keyboard(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("?")
    page.wait_for_selector("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
        if "choice" in reached:
            break
    assert "choice" in reached, reached
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "2px", width
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] is not None)


def sign_in(page: Any, token: str) -> None:
    page.wait_for_selector(".sign-in")
    page.get_by_label("Token", exact=True).fill(token)
    page.keyboard.press("Enter")


@scenario("sign in with a token", "401")
def signing_in(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    token = server.token_of("ada", "labeler")
    page = site.open("#/label")
    sign_in(page, "wrong " * 9)
    page.wait_for_selector(".message.bad >> text=not valid")
    sign_in(page, token)
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("1")
    wait_for(lambda: server.node(name)["label"] is not None)
    assert server.get("/v1/log?kind=label")["events"][0]["actor"] == "ada"
    assert token not in page.url
    kept = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    assert token not in page.evaluate(kept), "a script can read the token"
    page.keyboard.press("?")
    page.click("dialog >> text=Sign out")
    page.wait_for_selector(".sign-in")


@scenario("a restart ends the session, and no answer is lost", "ERR_|401|503|Failed to load")
def session_ends(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    token, (name,) = server.token_of("eva", "labeler"), server.unlabeled()
    page = site.open(node_hash(name))
    sign_in(page, token)
    page.wait_for_selector(".choice")
    page.wait_for_selector(".live.is-live")
    server.stop(signal.SIGKILL)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    server.start()
    page.wait_for_selector(".sign-in", timeout=30_000)
    sign_in(page, token)
    wait_for(lambda: server.node(name)["label"] is not None, 30)
    page.wait_for_selector(".live.is-live")


@scenario("a reader cannot label", "401")
def reader(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    page = site.open("#/label")
    sign_in(page, server.token_of("eve", "reader"))
    page.wait_for_selector(".choice")
    page.wait_for_selector("text=Giving labels needs the role labeler")
    assert page.locator(".choice").first.is_disabled()
    for key in ("1", "Enter", "s"):
        page.keyboard.press(key)
    page.goto(f"{server.address}/#/model")
    page.wait_for_selector("text=Training needs the role admin")
    assert page.locator("text=Train on the labels so far").is_disabled()
    page.goto(f"{server.address}/#/people")
    page.wait_for_selector("text=needs the role admin")
    assert server.get("/v1/log")["events"] == []


@scenario("many labels need a reviewer", "401|403")
def reviewer(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    for name, role, stored in (("lea", "labeler", False), ("rev", "reviewer", True)):
        page = site.open("#/table?state=unlabeled&q=package-")
        sign_in(page, server.token_of(name, role))
        page.wait_for_selector("tbody tr")
        page.get_by_label("Choose all nodes of this page").check()
        page.get_by_label("Class", exact=True).select_option(label="net")
        page.click("text=Continue")
        page.click("dialog >> text=Store")
        if stored:
            page.wait_for_selector("text=labels stored")
        else:
            page.wait_for_selector("dialog .message.bad")
        assert bool(server.get("/v1/log")["events"]) == stored


@scenario("a revoked person is signed out", "401")
def revoked(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    page = site.open("#/label")
    sign_in(page, server.token_of("max", "labeler"))
    page.wait_for_selector(".choice")
    name = title(page)
    server.send("DELETE", "/v1/people/max", None)
    page.keyboard.press("1")
    page.wait_for_selector(".sign-in")
    assert server.node(name)["label"] is None


@scenario("train, activate and roll back", "422")
def generations(site: Site) -> None:
    server = site.serve(site.copy())
    for name in server.unlabeled(12):
        server.label(name, server.node(name)["prediction"])
    page = site.open("#/model")
    page.click("text=Train on the labels so far")
    page.click("dialog >> text=Start the training")
    page.locator("tr button >> text=Activate").click(timeout=400_000)
    page.click("dialog >> text=Switch to generation 1")
    # With so few labels, chance decides whether the gate refuses the model.
    anyway = page.locator("dialog >> text=Switch anyway")
    wait_for(lambda: server.get("/v1/model")["generation"] == 1 or anyway.count())
    if anyway.count():
        anyway.click()
    wait_for(lambda: server.get("/v1/model")["generation"] == 1, 60)
    page.locator("tr button >> text=Roll back").click()
    page.click("dialog >> text=Switch to generation 0")
    wait_for(lambda: server.get("/v1/model")["generation"] == 0)
    page.wait_for_selector("tr:has-text('run') >> text=Active")


@scenario("several labels per node, without tables")
def several_labels(site: Site) -> None:
    server = site.serve(train_several(site.folder()))
    page = site.at_node("9")
    assert "Which of these apply?" in page.inner_text(".node")
    page.wait_for_selector(".columns >> text=Neighbors")
    page.click("text=other than zero")
    assert page.locator(".node .columns dt").count() > 1
    before = set(server.node("9")["prediction"])
    first = page.locator(".choice .name").first.inner_text()
    page.keyboard.press("1")
    wanted = before ^ {first}
    page.wait_for_selector(
        f".choice[aria-pressed='{str(first in wanted).lower()}'] >> text={first}"
    )
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Enter")
    wait_for(lambda: server.node("9")["label"] == sorted(wanted))
    wait_for(lambda: title(page) != "9")
    page.goto(f"{server.address}/{node_hash('9')}")
    page.click("text=Remove label")
    wait_for(lambda: server.node("9")["label"] is None)


@scenario("add a node", "422")
def add_node(site: Site) -> None:
    (name,) = site.server.unlabeled()
    new = f"new <i>{time.time_ns()}</i>"
    page = site.at_node(name)
    page.click("text=Add a node…")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("dialog .field-problem >> text=Enter an id")
    page.get_by_label("Id", exact=True).fill("package-0")
    page.get_by_label("size", exact=True).fill("many")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("#column-size-problem >> text=not a number")
    page.get_by_label("size", exact=True).fill("1.5")
    page.get_by_label("kind", exact=True).fill("net")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("#node-Id-problem >> text=already")
    page.get_by_label("Id", exact=True).fill(new)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    wait_for(lambda: title(page) == new)
    page.wait_for_selector(".choice")
    page.wait_for_selector(f".why .reasons >> text={name}")
    assert "1.5" in page.inner_text(".node .columns")
    assert server_neighbors(site.server, new) == [name]


@scenario("connect two nodes and undo", "422")
def connect(site: Site) -> None:
    name, other = site.server.unlabeled(2)
    if other in server_neighbors(site.server, name):
        site.server.send("DELETE", "/v1/edges", {"edges": [{"source": name, "target": other}]})
        wait_for(lambda: other not in server_neighbors(site.server, name))
    page = site.at_node(name)
    page.click("text=Connect…")
    page.get_by_label("With the node").fill("nobody knows it")
    page.keyboard.press("Enter")
    page.wait_for_selector("#other-node-problem >> text=no node")
    page.get_by_label("With the node").fill(other)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    wait_for(lambda: other in server_neighbors(site.server, name))
    page.wait_for_selector(".message >> text=added")
    page.keyboard.press("u")
    wait_for(lambda: other not in server_neighbors(site.server, name))


@scenario("bulk labels: cancel, and a warning before labels are replaced")
def bulk_cancel(site: Site) -> None:
    one, two = site.server.unlabeled(2)
    site.server.label(one, "vcs")
    page = site.open("#/table?q=package-")
    head = site.server.get("/v1/log?limit=1")["events"][0]["version"]
    for name in (one, two):
        page.get_by_label("Id contains").fill(name)
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_label("Class", exact=True).select_option(label="text")
    page.click("text=Continue")
    page.wait_for_selector("dialog >> text=1 node has another label now")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert site.server.get("/v1/log?limit=1")["events"][0]["version"] == head
    assert site.server.node(one)["label"] == "vcs"


@scenario("360 pixels without a mouse")
def phone_keyboard(site: Site) -> None:
    context = site.context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = site.open("#/label", context)
    page.wait_for_selector(".choice")
    name = title(page)
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('choice')"):
            break
    page.wait_for_timeout(300)
    chosen = page.evaluate("document.activeElement.querySelector('.name').textContent")
    box = page.evaluate("JSON.stringify(document.activeElement.getBoundingClientRect())")
    box = json.loads(box)
    assert box["height"] >= 44, f"a finger needs 44 pixels, the choice has {box['height']}"
    covered = page.evaluate(
        "([x, y]) => !document.activeElement.contains(document.elementFromPoint(x, y))",
        [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
    )
    assert not covered, f"the focus cannot be seen: {box}"
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == chosen)
    wait_for(lambda: title(page) != name)
    small = page.evaluate(
        "[...document.querySelectorAll('main .button:not(.compact), main .choice')]"
        ".filter((e) => e.offsetHeight && e.offsetHeight < 36).map((e) => e.textContent)"
    )
    assert not small, small
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(name)["label"] is None)


def run_scenario(browser: Any, server: Server, name: str) -> dict[str, Any]:
    """Run one scenario; `problem` is empty if it passed."""
    site, problem, started = Site(browser, server), "", time.monotonic()
    try:
        SCENARIOS[name](site)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        where = next((line for line in lines[::-1] if line.filename == __file__), lines[-1])
        text = str(error).strip() or where.line
        problem = f"line {where.lineno}: {text}"[:500]
    try:
        site.close()
    except Exception as error:
        problem = problem or f"the page was lost: {error}"[:500]
    seen = site.seen
    console = [line for line in seen.console if not re.search(EXPECTED.get(name, r"(?!)"), line)]
    if not problem and console:
        problem = f"console: {console[0]}"[:500]
    if not problem and seen.elsewhere:
        problem = f"a request to {seen.elsewhere[0]}"
    if not problem and seen.ran:
        problem = "a script of an id or a class ran"
    return {
        "passed": not problem,
        "problem": problem,
        "seconds": round(time.monotonic() - started, 1),
    }


@contextmanager
def served(folder: Path) -> Iterator[tuple[Any, Server]]:
    """A browser, and the server of a new run."""
    from playwright.sync_api import sync_playwright

    server = Server(train(folder), free_port())
    server.start()
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
            try:
                yield browser, server
            finally:
                browser.close()
    finally:
        server.stop()


def take_pictures(browser: Any, server: Server, folder: Path) -> None:
    """Pictures of every part at three widths in both themes, to be looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in WIDTHS:
        for theme in ("light", "dark"):
            site = Site(browser, server)
            context = site.context(viewport={"width": width, "height": height}, color_scheme=theme)
            for part in ("label", "table", "audit", "log", "model", "people"):
                page = site.open(f"#/{part}", context)
                page.wait_for_timeout(1_500)
                page.screenshot(path=folder / f"{part}-{width}-{theme}.png", full_page=width < 1000)
                page.close()
            site.close()


def take_documents(images: Path) -> None:
    """The pictures of the documentation, from `unimp serve --demo`."""
    from playwright.sync_api import sync_playwright

    from unimp.serving.demo import RUN, unpack

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as play:
        unpack(Path(temporary) / "demo")
        server = Server(Path(temporary) / "demo" / RUN, free_port())
        server.start()
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        try:
            for name, width, height in (("serve", 1440, 900), ("serve-phone", 360, 740)):
                site = Site(browser, server)
                context = site.context(viewport={"width": width, "height": height})
                context.set_default_timeout(120_000)
                page = site.open("#/label", context)
                page.wait_for_selector(".picture img", state="attached")
                page.wait_for_selector(".columns >> text=Neighbors")
                page.wait_for_timeout(1_000)
                page.screenshot(path=images / f"{name}.png")
                site.close()
        finally:
            browser.close()
            server.stop()


def cannot_browse() -> str:
    """Why no browser can be used; empty if it can."""
    if BROWSER is None:
        return "chromium is not installed"
    return "" if find_spec("playwright") else "playwright is not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all without a name")
    parser.add_argument("--pictures", type=Path, help="take pictures into a folder instead")
    parser.add_argument("--documents", action="store_true", help="take those of docs/ instead")
    given = parser.parse_args()
    if why := cannot_browse():
        sys.exit(f"{why}; see the top of this file")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if given.documents:
        take_documents(Path(__file__).parents[1] / "docs" / "images")
        return
    with (
        tempfile.TemporaryDirectory() as temporary,
        served(Path(temporary)) as (browser, server),
    ):
        chromium = browser.version
        if given.pictures:
            take_pictures(browser, server, given.pictures)
            return
        results = {}
        for name in given.names or SCENARIOS:
            results[name] = run_scenario(browser, server, name)
            print(f"{'passed' if results[name]['passed'] else 'FAILED'}  {name}", flush=True)
            if results[name]["problem"]:
                print(f"        {results[name]['problem']}", flush=True)
    failed = [name for name, result in results.items() if not result["passed"]]
    stored = {
        "scenarios": results,
        "passed": len(results) - len(failed),
        "failed": len(failed),
        "chromium": chromium,
        "unimp": unimp.__version__,
        "code": code_origin(),
        "command": "python proofs/serve_page.py",
    }
    if not given.names:
        write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
