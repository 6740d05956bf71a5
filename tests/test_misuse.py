"""Wrong arguments of public functions are refused: the short form of proofs/misuse.py."""

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

import unimp

PROOF = runpy.run_path(str(Path(__file__).parents[1] / "proofs" / "misuse.py"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return PROOF["World"](tmp_path_factory.mktemp("misuse"))


def test_wrong_calls_are_refused_with_a_clear_message(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about what is refused a moment later
        outcomes = [PROOF["result_of"](case) for case in PROOF["cases"](world, 600)]
    assert outcomes.count("refused") > 400


def test_every_valid_call_works(world: Any) -> None:
    for call in world.calls():
        call.function(**call.arguments)


def test_every_public_function_is_part_of_the_proof(world: Any) -> None:
    names = {call.name.partition(".")[0].partition("(")[0] for call in world.calls()}
    assert names == set(unimp.__all__) - {"UNLABELED", "UnimpError"}
