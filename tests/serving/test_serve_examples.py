"""The examples for the label service work, and their commands exist."""

import configparser
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import table_run
from typer.main import get_command

from unimp.cli import app

pytest.importorskip("fastapi", reason="the service needs the extra [serve]")

from live_server import Server, serving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "serve"
PAGES = ("serving", "labeling")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("examples")
    table_run(folder)
    with serving(folder / "run") as made:
        yield made


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_curl(server: Server) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    printed = run("sh", EXAMPLES / "label.sh", server.address, "n2", "blue").splitlines()
    node, written, changes = map(json.loads, printed)
    assert node["node"]["id"] == "n2"
    assert changes["version"] >= written["version"]
    assert {"n2": "blue"}.items() <= {one["id"]: one["label"] for one in changes["nodes"]}.items()


def test_the_client_reads_what_it_wrote(server: Server) -> None:
    printed = run(sys.executable, EXAMPLES / "client.py", server.address, "n4", "green")
    assert "n4: green" in printed.splitlines()
    refused = subprocess.run(
        [sys.executable, EXAMPLES / "client.py", server.address, "n4", "violet"],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "violet" in refused.stderr


def test_the_pipeline_pushes_once_and_follows_changes(server: Server, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "changed.jsonl"
    labels.write_text("node,label\nn6,red\nn8,blue\n")
    command = (sys.executable, EXAMPLES / "pipeline.py", server.address, labels, out, 1)
    run(*command)
    changed = {one["id"]: one for one in map(json.loads, out.read_text().splitlines())}
    assert changed["n6"]["label"] == "red"
    head = server.service.store.reader.head()
    lines = len(out.read_text().splitlines())
    run(*command)  # stopped and started again: nothing is stored or reported twice
    assert server.service.store.reader.head() == head
    assert len(out.read_text().splitlines()) == lines
    server.client.put("/v1/nodes/n10/label", json={"label": "green"})
    pipeline = runpy.run_path(str(EXAMPLES / "pipeline.py"))
    since = int(out.with_suffix(".version").read_text())
    found, version = pipeline["changes"](server.address, since, since + 1)
    assert "n10" in {node["id"] for node in found}
    assert version == since + 1


def check_command(words: list[str]) -> None:
    """Parse a command line of `unimp`; an unknown command or option raises."""
    command: Any = get_command(app)
    name, *arguments = words[1:]
    command.commands[name].make_context(name, arguments, resilient_parsing=False)


def test_the_unit_of_systemd_starts_the_service_with_options_that_exist() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((EXAMPLES / "unimp.service").read_text(encoding="utf-8"))
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(words[0]).name == "unimp"
    check_command(words)
    written = [word for word in words if word.startswith("/srv")]
    assert written
    assert all(word.startswith(unit["Service"]["ReadWritePaths"]) for word in written)
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", EXAMPLES / "unimp.service"],
            capture_output=True,
            text=True,
        )
        assert "Unknown" not in done.stderr


def test_the_container_copies_files_that_exist_and_starts_the_service() -> None:
    lines = (EXAMPLES / "Containerfile").read_text(encoding="utf-8").splitlines()
    parts = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert {word for word, _ in parts} == known
    for word, rest in parts:
        if word == "COPY":
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
    (command,) = [json.loads(rest) for word, rest in parts if word == "CMD"]
    check_command(command)
    (port,) = [rest for word, rest in parts if word == "EXPOSE"]
    assert port in command
    (user,) = [rest for word, rest in parts if word == "USER"]
    assert user != "root"


def commands() -> list[str]:
    text = "\n".join((ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES)
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    return [re.split(r"  +#", line)[0] for line in blocks.splitlines() if line.startswith("unimp ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_of_the_pages_is_understood(line: str) -> None:
    check_command(shlex.split(line))


def test_the_pages_name_examples_and_routes_that_exist(server: Server) -> None:
    routes = set(server.client.get("/openapi.json").json()["paths"])
    text = "\n".join((ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES)
    for path in re.findall(r"`(?:(?:GET|PUT|POST|DELETE|and) )*(/v1/[^`? ]*)", text):
        plain = re.sub(r"\{[a-z_]+\}", "{}", path)
        if path.startswith("/v1/export/"):
            continue
        assert plain in {re.sub(r"\{[a-z_]+\}", "{}", route) for route in routes}, path
    named = set(re.findall(r"examples/serve/([\w.]+)", text))
    assert named == {path.name for path in EXAMPLES.iterdir() if path.is_file()}
