"""Malformed tables and recipes are refused with a message; the long form is
proofs/bad_tables.py."""

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

PROOF = runpy.run_path(str(Path(__file__).parents[3] / "proofs" / "bad_tables.py"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on valid tables, which `predict` is asked to extend by spoiled ones."""
    run: Path = PROOF["trained_run"](tmp_path_factory.mktemp("sound"))
    return run


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(case=PROOF["cases"]())
def test_spoiled_tables_are_refused_with_the_place_and_a_fix(case: Any, finished: Path) -> None:
    PROOF["refusal"](case, finished)


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_valid_tables_pass_the_check(form: str, tmp_path: Path) -> None:
    case = PROOF["valid_case"](form, "check")
    PROOF["write_case"](case, tmp_path, None)
    code, out, err = PROOF["run_command"](PROOF["command_line"](case), tmp_path)
    assert (code, err) == (0, "")
    assert "Next: unimp train" in out


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    case = PROOF["valid_case"]("csv", "check")
    case.nodes[2]["id"] = None
    case.nodes[3]["age"], case.nodes[4]["vector"] = "old", [1.0]
    case.edges[5]["weight"] = "heavy"
    case.nodes[7]["set"] = "holdout"
    case.recipe["tables"]["features"]["hight"] = "numeric"
    for rows, column in ((case.nodes, "age"), (case.edges, "weight")):
        for row in rows:
            row[column] = str(row[column])
    PROOF["write_case"](case, tmp_path, None)
    code, _, err = PROOF["run_command"](["check", "recipe.toml"], tmp_path)
    assert code == 1
    assert "6 problems in the tables" in err
    for place in (
        "nodes.csv, column id, row 3: the id is empty",
        "nodes.csv, column age, row 4: 'old' is not a number",
        "nodes.csv, column vector, row 5: 1 numbers, but other rows have 3",
        "nodes.csv, column set, row 8: 'holdout' is not the name of a set",
        "nodes.csv, column hight: the column does not exist",
        "edges.csv, column weight, row 6: 'heavy' is not a number",
    ):
        assert place in err
