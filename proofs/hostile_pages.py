"""Show that the pages of a hostile run cannot run a script or send a request.

    python proofs/hostile_pages.py                → proofs/results/hostile_pages.json

A run is built whose ids, classes, columns, recipe, metrics, manifest and explanations contain
markup: scripts, event handlers, links, styles and pieces of SVG. Every kind of page is rendered
from it: the reports of one run, of several runs, of binary tasks and of a map, the page of an
explanation, the page and the figure of a study, and the tables that a notebook shows. Each page is
parsed, and opened in Chromium, which moves over and clicks every element. No script may run, no
dialog may open, no element may have a handler, and no request may be sent. Two pages in which the
markup is not escaped are the controls. Without the policy, scripts and requests must be detected.
With the policy, no script may run and no request may be sent.

The browser needs `pip install playwright` and a Chromium on the path; the study's page needs
`pip install markdown`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from unimp import __version__
from unimp.config.data_options import TablesOptions, TaskOptions
from unimp.data.files import write_atomically
from unimp.data.synthetic import synthetic_task
from unimp.report.evidence import Evidence, Explanations, StoredExplanation
from unimp.report.explanation import explanation_page
from unimp.report.page import page_html
from unimp.runs.evidence import gather
from unimp.runs.experiment import run
from unimp.runs.run import Run
from unimp.studies.drawing import figure_svg
from unimp.studies.pages import markdown
from unimp.studies.reproduce import STUDIES
from unimp.studies.study import Claim, Column, Figure, Findings, Point, Row, Series, Table
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "hostile_pages.json"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
RAN = "window.ran = (window.ran || 0) + 1"
HOST = "http://attacker.invalid"
PAYLOADS = (
    f"<script>{RAN}</script>",
    f"</title></style></textarea></script><script src={HOST}/a.js></script>",
    f"<img src={HOST}/b.png onerror='{RAN}'>",
    f"'\"><svg/onload='{RAN}'><image href={HOST}/c.png></svg>",
    f"<a href='javascript:{RAN}' onclick='{RAN}' onmouseover='{RAN}'>click</a>",
    f'<iframe srcdoc="<script>parent.{RAN}</script>"></iframe><object data={HOST}/d></object>',
    f"<style>@import url({HOST}/e.css); * {{ background: url({HOST}/f.png) }}</style>",
    f"</desc></text><foreignObject><body onload='{RAN}'></body></foreignObject>",
    f"<meta http-equiv=refresh content='0;url={HOST}/g'><base href={HOST}/>",
    f"{{{{ ''.__class__ }}}}{{% raw %}}${{{RAN}}}<details open ontoggle='{RAN}'>",
    f"[click](javascript:{RAN}) ![x]({HOST}/h.png) <{HOST}/i>",
    f"--><![CDATA[<script>{RAN}</script>]]>&lt;script&gt;{RAN}&lt;/script&gt;",
    f"<form action={HOST}/j><button>send</button></form><link rel=stylesheet href={HOST}/k.css>",
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
FORBIDDEN = {"script", "iframe", "object", "embed", "link", "base", "form", "input", "button", "a"}
FORBIDDEN |= {"audio", "video", "source", "foreignobject", "animate", "set", "use", "image"}


def payload(number: int) -> str:
    """A different payload for each number; the number makes names distinct."""
    return f"{number}{PAYLOADS[number % len(PAYLOADS)]}"


def hostile_task(seed: int, *, binary: bool = False, positions: bool = False) -> Task:
    """A task whose nodes and classes are named by payloads."""
    classes = len(PAYLOADS)
    task = synthetic_task(
        num_nodes=30 * classes,
        num_edges=100 * classes,
        num_classes=classes,
        num_features=8,
        seed=seed,
    )
    names = tuple(payload(k) for k in range(classes))
    changes: dict[str, Any] = {
        "name": payload(seed),
        "class_names": names,
        "node_names": tuple(payload(k) for k in range(task.graph.num_nodes)),
    }
    if binary:
        labels = torch.nn.functional.one_hot(task.labels.clamp(min=0), classes).to(torch.int8)
        changes |= {"labels": labels, "metric": "rocauc"}
    if positions:
        generator = torch.Generator().manual_seed(0)
        changes["positions"] = torch.randn(task.graph.num_nodes, 2, generator=generator)
    return replace(task, **changes)


def hostile_values(value: Any, counter: Iterator[int]) -> Any:
    """The same structure with every text replaced by a payload; numbers stay, so that it draws."""
    if isinstance(value, Mapping):
        return {key: hostile_values(entry, counter) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [hostile_values(entry, counter) for entry in value]
    return payload(next(counter)) if isinstance(value, str) else value


def hostile_evidence(run: Run, folder: Path) -> Evidence:
    """What a report shows about the run, with payloads in every text, and in further entries."""
    counter = iter(range(10**9))
    found = gather(folder, run, label_rates=True)
    metrics = {**found.metrics, **{k: payload(next(counter)) for k in ("stopped", "note")}}
    # The names of calibration methods and metrics are words that the page looks up.
    manifest = hostile_values(dict(found.manifest), counter)
    manifest[payload(next(counter))] = {payload(next(counter)): payload(next(counter))}
    tables = TablesOptions(
        nodes=payload(1), label=[payload(2)], features={payload(k): "numeric" for k in range(3, 16)}
    )
    recipe = found.recipe.model_copy(
        update={
            "name": payload(next(counter)),
            "about": payload(next(counter)),
            "tables": tables,
            "task": TaskOptions(name=payload(next(counter))),
        }
    )
    explained = [run.explain(payload(node)).to_dict() for node in range(4)]
    stored = [StoredExplanation(one, "2026-01-01", {payload(5): payload(6)}) for one in explained]
    return replace(
        found,
        metrics=metrics,
        manifest=manifest,
        recipe=recipe,
        folder=Path(payload(next(counter))),
        explanations=Explanations(stored, stale=1, damaged=1),
        missing=payload(next(counter)),
        no_label_rates=payload(next(counter)),
    )


def hostile_findings() -> tuple[Findings, dict[str, Any]]:
    """The numbers of a study with payloads in every text."""
    ours = {"a": {0: 0.5, 1: 0.6}}
    table = Table(
        (payload(0),),
        (Column("a", payload(1)),),
        tuple(Row((payload(k),), ours, remark=payload(k + 1)) for k in range(len(PAYLOADS))),
    )
    series = tuple(
        Series(
            payload(k),
            tuple(Point(float(x), {0: 0.5 + 0.1 * x}, mark=payload(x)) for x in range(3)),
        )
        for k in range(6)
    )
    figure = Figure("lines", payload(2), payload(3), series, counts_label=payload(4))
    claims = tuple(Claim(payload(k), payload(k + 1), payload(k + 2), "yes") for k in range(5))
    findings = Findings(
        protocol=payload(5),
        tables=(table,),
        figure=figure,
        claims=claims,
        notes=tuple(map(payload, range(len(PAYLOADS)))),
    )
    made = {
        "task": payload(6),
        "recipe": payload(7),
        "settings": [payload(k) for k in range(len(PAYLOADS))],
        "seeds": [0, 1],
        "quick": False,
        "epochs": 3,
        "command": " ".join(map(payload, range(len(PAYLOADS)))),
        "versions": [payload(8)],
        "hardware": [payload(9)],
        "code": [{"commit": payload(10), "dirty": False}],
    }
    return findings, made


def build_pages(folder: Path) -> dict[str, Path]:
    """Render every kind of page from hostile runs; returns their paths by kind."""
    settings = {"train.epochs": 3, "model.width": 8, "model.layers": 2, "train.device": "cpu"}
    kinds = {"report": {}, "map": {"positions": True}, "binary": {"binary": True}}
    runs = {
        kind: run(
            hostile_task(seed, **options),
            seed=seed,
            out=folder / kind,
            settings=settings,
            report=False,
        )
        for seed, (kind, options) in enumerate(kinds.items())
    }
    evidence = {kind: hostile_evidence(done, folder / kind) for kind, done in runs.items()}
    pages = {kind: page_html([one]) for kind, one in evidence.items()}
    again = replace(evidence["report"], manifest={**evidence["report"].manifest, "seed": 1})
    pages["comparison"] = page_html([*evidence.values(), again])
    explained = runs["report"].explain(payload(0))
    pages["explanation"] = explanation_page(explained.to_dict(), payload(3), 10)
    frame = "<!doctype html><html><head><title>notebook</title></head><body>{}</body></html>"
    shown = [
        explained,
        explained.labels_table,
        runs["report"].predictions(),
        runs["report"].suggest(5),
    ]
    pages["notebook"] = frame.format("".join(one._repr_html_() for one in shown))
    findings, made = hostile_findings()
    study = next(iter(STUDIES.values()))
    pages["figure.svg"] = figure_svg(study, findings, made)
    if find_spec("markdown") is not None:
        import markdown as renderer

        text = markdown(study, findings, made, None)
        pages["study"] = frame.format(renderer.markdown(text, extensions=["tables"]))
    paths = {}
    for kind, text in pages.items():
        paths[kind] = folder / (kind if "." in kind else f"{kind}.html")
        write_atomically(paths[kind], text.encode())
    return paths


def control_pages(folder: Path) -> dict[str, Path]:
    """Pages in which the payloads are not escaped: without a policy, and with that of a report."""
    policy = POLICY.search(page_policy())
    assert policy is not None
    body = "".join(f"<div>{one}</div>" for one in PAYLOADS[:1] + PAYLOADS[2:7])
    paths = {}
    for kind, head in (("unescaped", ""), ("unescaped with the policy", policy[0])):
        paths[kind] = folder / f"{kind}.html"
        start = f"<!doctype html><html><head><title>control</title>{head}</head>"
        text = f"{start}<body>{body}</body></html>"
        write_atomically(paths[kind], text.encode())
    return paths


def page_policy() -> str:
    """The head of every page."""
    from unimp.report.rendering import render

    return render("base.html")


@dataclass
class Parsed(HTMLParser):
    """The elements and attributes of a page that could run a script or send a request."""

    found: list[str] = field(default_factory=list)
    elements: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        if tag in FORBIDDEN:
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            address = re.sub(r"[\s\0-\x20]", "", value or "").lower()
            if name.startswith("on") or name in ("srcdoc", "action", "formaction"):
                self.found.append(f"{tag} {name}")
            elif name in ("src", "href", "xlink:href", "data", "poster", "srcset"):
                if not address.startswith("data:image/png;base64,"):
                    self.found.append(f"{tag} {name}={address[:40]}")
            elif name == "style" and re.search(r"url\(|@import|expression", address):
                self.found.append(f"{tag} style={address[:40]}")
            elif (name, tag) == ("http-equiv", "meta") and address != "content-security-policy":
                self.found.append(f"meta http-equiv={address[:40]}")


def parse(path: Path) -> Parsed:
    """Parse a page."""
    parsed = Parsed()
    parsed.feed(path.read_text(encoding="utf-8"))
    parsed.close()
    return parsed


def browse(pages: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Open pages in Chromium, move over and click everything, and record what happened."""
    from playwright.sync_api import sync_playwright

    results = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        version = browser.version
        for kind, path in pages.items():
            seen = dict[str, list[str]](dialogs=[], console=[], requests=[], refused=[])
            page = browser.new_page()
            page.on(
                "dialog",
                lambda dialog, seen=seen: (
                    seen["dialogs"].append(dialog.message),
                    dialog.dismiss(),
                ),
            )
            page.on("console", lambda message, seen=seen: seen["console"].append(message.text))
            page.on("request", lambda request, seen=seen: seen["requests"].append(request.url))
            page.on("requestfailed", lambda request, seen=seen: refuse(request, seen["refused"]))
            page.goto(path.as_uri())
            page.wait_for_timeout(300)
            clicked = page.evaluate(
                """() => {
                  const all = [...document.querySelectorAll("*")];
                  const kinds = ["mouseover", "mouseenter", "focus", "click", "toggle"];
                  for (const element of all) for (const kind of kinds)
                    element.dispatchEvent(new MouseEvent(kind, {bubbles: true}));
                  return all.length;
                }"""
            )
            page.wait_for_timeout(300)
            ran = page.evaluate("window.ran || 0")
            own = path.as_uri()
            quiet = (own, "data:image/png", "about:")
            requests = [url for url in seen["requests"] if not url.startswith(quiet)]
            results[kind] = {
                "bytes": path.stat().st_size,
                "elements": clicked,
                "scripts_run": ran,
                "dialogs": len(seen["dialogs"]),
                "console_lines": len(seen["console"]),
                "requests": len(requests) - len(seen["refused"]),
                "requests_refused_by_the_policy": len(seen["refused"]),
                "left_the_page": page.url != own,
            }
            page.close()
        browser.close()
    results["chromium"] = {"version": version}
    return results


def refuse(request: Any, refused: list[str]) -> None:
    """Note a request that the policy of the page stopped before it was sent."""
    if "csp" in (request.failure or ""):
        refused.append(request.url)


def is_quiet(result: Mapping[str, Any]) -> bool:
    """Whether nothing happened on a page."""
    return not any(value for key, value in result.items() if key not in ("bytes", "elements"))


def cannot_browse() -> str:
    """Why no browser can be used; empty if it can."""
    if BROWSER is None:
        return "chromium is not installed"
    return "" if find_spec("playwright") else "playwright is not installed"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if why := cannot_browse():
        sys.exit(f"{why}; see the top of this file")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pages, controls = build_pages(folder), control_pages(folder)
        parsed = {kind: parse(path).found for kind, path in pages.items()}
        results = browse(pages | controls)
    chromium = results.pop("chromium")["version"]
    detected, blocked = (results.pop(kind) for kind in controls)
    assert detected["scripts_run"], "the control without a policy did not run a script"
    assert detected["requests"], "the control without a policy did not send a request"
    assert not blocked["scripts_run"], "the policy did not stop a script"
    assert not blocked["requests"], "the policy did not stop a request"
    failed = {k: r for k, r in results.items() if parsed[k] or not is_quiet(r)}
    stored = {
        "payloads": len(PAYLOADS),
        "pages": {kind: {"found_by_parsing": parsed[kind], **one} for kind, one in results.items()},
        "controls": {"unescaped": detected, "unescaped, with the policy": blocked},
        "quiet_pages": len(results) - len(failed),
        "chromium": chromium,
        "unimp": __version__,
        "code": code_origin(),
        "command": "python proofs/hostile_pages.py",
    }
    write_atomically(RESULTS, (json.dumps(stored, indent=1) + "\n").encode())
    print(json.dumps(stored, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
