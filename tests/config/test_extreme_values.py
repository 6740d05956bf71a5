"""Every option with every extreme value is used, or refused in words, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unimp.config.recipe import DECLARED, Recipe, load_recipe
from unimp.config.seeds import MAX_SEED, MAX_SEEDS, check_seeds, parse_seeds
from unimp.errors import RecipeError, printable
from unimp.runs.experiment import run

LONG = "x" * 100_000
VALUES = (
    *(0, -1, 1, 10_000, 10**9, 2**31, 2**63, 10**5000, -(2**63)),
    *(0.0, -0.5, 1e9, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\0", "../..", "\x1b[2J", LONG, "9" * 5000, "auto", "nan"),
    *(True, None, [], [0], [-1] * 300, [10**9], [LONG], {}, {"a": "numeric"}, {LONG: LONG}),
)


@pytest.mark.parametrize("name", DECLARED)
def test_every_extreme_value_is_accepted_or_refused_in_a_short_message(name: str) -> None:
    refused = 0
    for value in VALUES:
        try:
            recipe = Recipe(name="mine").with_settings({name: value})
        except RecipeError as error:
            message = str(error)
            assert len(message) < 1_000
            assert message == printable(message)
            assert name in message or "[tables]" in message
            refused += 1
        else:
            section, _, key = name.partition(".")
            assert getattr(getattr(recipe, section), key) == value
    assert refused > 5


@pytest.mark.parametrize("name", [n for n, o in DECLARED.items() if o.annotation in (int, float)])
def test_every_number_has_a_lower_and_an_upper_limit(name: str) -> None:
    for value in (-(10**30), 10**40):
        with pytest.raises(RecipeError, match=name):
            Recipe(name="mine").with_settings({name: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.width", 10**9),
        ("model.layers", 10_000),
        ("tables.text_width", 2**31 - 1),
        ("task.split", -1),
    ],
)
def test_values_that_no_machine_could_hold_are_refused_with_their_option(
    setting: str, value: int
) -> None:
    with pytest.raises(RecipeError, match=rf"{setting}.*{value}"):
        Recipe(name="mine").with_settings([f"{setting}={value}"])


# The largest accepted sizes, in a process that may not allocate much.
LARGEST = """
import json, resource, sys
import torch, unimp
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
base = {"task.scale": 0.01, "train.epochs": 1, "train.device": "cpu"}
for settings in json.loads(sys.argv[1]):
    try:
        unimp.run("synthetic", settings={**base, **settings})
        print("used")
    except unimp.UnimpError as error:
        print(json.dumps(str(error)))
"""


def test_models_that_do_not_fit_are_refused_before_they_are_built(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"model.width": 65_536},
        {"model.width": 65_536, "model.heads": 1024, "model.layers": 256},
        {"model.heads": 1024, "model.width": 4096, "model.name": "mlp"},
        {"model.width": 2},
    ]
    done = subprocess.run(
        [sys.executable, "-c", LARGEST, json.dumps(given)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == "used"
    for line in lines[:-1]:
        assert "memory" in line
        assert "reduce model." in line


def test_a_backend_for_gpus_is_refused_on_a_cpu_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    settings = {"model.backend": "triton", "train.device": "cpu"}
    with pytest.raises(ValueError, match=r"model\.backend.*triton.*GPU"):
        run("debian", settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["0-99999999999", f"0-{MAX_SEEDS}", str(MAX_SEED + 1), "9" * 99])
def test_too_many_or_too_large_seeds_are_refused_at_once(text: str) -> None:
    with pytest.raises(RecipeError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize("seeds", [range(10**12), [-1], [0.5], ["a"], [], 3, [2**70]])
def test_seeds_from_python_are_checked_without_storing_all(seeds: Any) -> None:
    with pytest.raises(RecipeError, match="seed"):
        check_seeds(seeds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "name = 'mine'\n",
        "[train]\nepochs = 3\n",
        "[tables]\n",
        "[tables]\nedges = 'e.csv'\n",
        "[task]\nname = 'debian'\n[tables]\nid = 'key'\n",
        "[tables]\nnodes = ''\nedges = 'e.csv'\n",
    ],
)
def test_a_recipe_that_names_no_task_or_no_nodes_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"mine.*\[tables\]"):
        load_recipe(path)


def test_options_of_tables_are_refused_for_a_task_without_tables() -> None:
    with pytest.raises(RecipeError, match="label"):
        load_recipe("debian", ["tables.label=section"])


def test_a_recipe_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[task]\nname = 'synthetic'\n", encoding="utf-8-sig")
    assert load_recipe(path).task.name == "synthetic"
    path.write_text("[task]\nname = 'synthetic'\n", encoding="utf-16")
    with pytest.raises(RecipeError, match="UTF-8"):
        load_recipe(path)
