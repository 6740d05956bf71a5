"""What the README shows works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import unimp
from unimp.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_session_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = unimp.run

    def shorter(*arguments: Any, **options: Any) -> unimp.Run:
        return real(*arguments, **options, settings=["train.epochs=1", "model.width=4"])

    monkeypatch.setattr(unimp, "run", shorter)
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)
    assert torch.equal(names["same"].predict(), names["run"].predict())


def test_a_graph_from_arrays_becomes_a_file_to_train_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "unimp": unimp,
        "edge_index": [[0, 1, 2, 3], [1, 2, 3, 0]],
        "features": torch.eye(4),
        "labels": torch.tensor([0, 6, -1, 1]),
        "split": unimp.Split(*(torch.tensor([n]) for n in (0, 1, 3))),
    }
    exec(blocks("python")[1], names)
    settings = ["train.epochs=1", "mask.label_rate=0"]
    assert unimp.run("mine.npz", settings=settings).task.num_classes == 7


def commands() -> list[str]:
    lines = "".join(blocks("bash")).splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("unimp ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_is_understood(line: str) -> None:
    command: Any = get_command(app)
    arguments = shlex.split(line)[1:]
    while arguments and hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(line, arguments)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(((?!http)[^)]+)\)", README))))
def test_each_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
