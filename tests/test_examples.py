"""What the pages on training and resuming show: programs run, commands are understood."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from unimp.cli import app
from unimp.config.presets import PRESETS

ROOT = Path(__file__).parent.parent
PAGES = ("training", "resuming")


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page_is_the_file_beside_and_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "examples" / f"{page}.py"
    (shown,) = re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)
    assert shown == path.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))


def commands() -> list[str]:
    lines = "\n".join(text_of(page) for page in PAGES).splitlines()
    return [re.split(r"  +", line)[0] for line in lines if line.startswith("unimp ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_is_understood(line: str) -> None:
    command: Any = get_command(app)
    name, *arguments = shlex.split(line)[1:]
    command.commands[name].make_context(line, arguments)


def test_the_table_of_presets_says_what_they_are() -> None:
    for name, preset in PRESETS.items():
        row, *_ = re.findall(  # what it comes to stands in a table further down
            rf"^\| `{name}` \|.*$", text_of("training"), flags=re.MULTILINE
        )
        for place in ("train.epochs", "train.eval_every"):
            assert re.search(rf"\b{preset.options[place]}\b", row)
        if patience := preset.options["train.patience"]:
            assert f"| {patience} |" in row


def test_killed_at_random_moments_a_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """The short form of proofs/kill.py."""
    proof, settings = (
        ROOT / "proofs" / "kill.py",
        ["--set", "train.epochs=8", "--regimes", "full", "neighbors"],
    )
    done = subprocess.run(
        [
            sys.executable,
            proof,
            "--kills",
            "1",
            "--aimed",
            "0",
            *settings,
            "--out",
            tmp_path / "kill.json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 equal" in done.stdout
