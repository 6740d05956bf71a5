"""Means, differences and verdicts from numbers by seed."""

import math
from pathlib import Path

import pytest

from unimp.config.recipe import load_recipe
from unimp.config.task_names import OGB
from unimp.data.catalog import known_sizes
from unimp.studies import figures, paper
from unimp.studies.cells import Subject
from unimp.studies.figures import LABEL_RATES, figure_a, figure_d
from unimp.studies.pages import table_lines
from unimp.studies.study import (
    Claim,
    Column,
    Gap,
    Outcome,
    Row,
    Table,
    comparisons,
    deviation,
    gap,
    verdict,
)
from unimp.studies.tables import inputs, layer, results
from unimp.tasks.means import FEW_NODES, mean_text


def test_the_deviation_over_seeds_is_the_unbiased_one() -> None:
    values = {0: 0.70, 1: 0.72, 2: 0.77}
    assert deviation(values) == pytest.approx(math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2))


def test_a_mean_that_is_not_finite_is_a_dash() -> None:
    for values in ([math.nan], [0.5, math.inf], []):
        assert mean_text(values) == mean_text(values, percent=False) == "–"
    assert mean_text([0.70, 0.72, 0.77]) == "73.00 ± 3.61"
    assert mean_text([0.5], percent=False) == "0.5000"
    number = paper.Number(0.7311, 0.0021, "Table 7")
    row = Row(("UniMP",), {"test": {0: math.nan}}, {"test": number})
    lines = table_lines(Table(("model",), (Column("test", "test"),), (row,)))
    assert lines[2] == "| UniMP | – | 73.11 ± 0.21 | – |"
    assert gap({0: math.nan}, {0: 0.5}) is None


def test_a_row_shows_the_papers_number_and_the_difference() -> None:
    number = paper.Number(0.7311, 0.0021, "Table 7")
    row = Row(("UniMP",), {"test": {0: 0.74, 1: 0.73}}, {"test": number})
    lines = table_lines(Table(("model",), (Column("test", "test"),), (row,)))
    assert lines[0] == "| model | test in % | paper: test | difference |"
    assert lines[2] == "| UniMP | 73.50 ± 0.71 | 73.11 ± 0.21 | +0.39 |"


def test_differences_are_taken_seed_by_seed() -> None:
    found = gap({0: 0.5, 1: 0.7, 5: 0.1}, {0: 0.4, 1: 0.6, 2: 0.9})
    assert found is not None
    assert found.mean == pytest.approx(0.1)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert gap({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([Gap(0.1, 0.01, 10), Gap(0.2, 0.0, 10)], "yes"),
        ([Gap(0.1, 0.01, 10), Gap(-0.2, 0.05, 10)], "no"),
        ([Gap(0.1, 0.01, 10), Gap(-0.2, 0.15, 10)], "not clear"),
        ([Gap(0.1, 0.01, 2)], "not clear"),  # with two seeds, a mean of ten errors is chance
        ([Gap(0.5, math.nan, 1)], "not clear"),
        ([Gap(0.0, 0.0, 10)], "not clear"),
        ([], "not measured"),
    ],
)
def test_a_claim_holds_only_where_differences_are_clear(gaps: list[Gap], expected: str) -> None:
    assert verdict(gaps) == expected


def test_pairs_that_were_not_measured_do_not_count() -> None:
    pairs = [("one", {0: 0.2, 1: 0.4}, {0: 0.1, 1: 0.29}), ("two", {}, {0: 1.0})]
    (claim,) = comparisons("b", {"a": pairs})
    assert (claim.ours, claim.agrees) == ("one +10.50", "yes")


@pytest.fixture
def arxiv() -> Subject:
    recipe = load_recipe("arxiv-paper")
    return Subject(
        "ogbn-arxiv", recipe, known_sizes("ogbn-arxiv"), "accuracy", (0, 1), Path("out"), ()
    )


def outcomes_of(study_cells: object, score: float) -> dict[str, Outcome]:
    metrics = {
        "scores": {"train": {"val": score, "test": score}, "train+val": {"test": score}},
        "parameters": 473_745,
    }
    return {
        cell.name: Outcome(cell, {0: metrics, 1: metrics})
        for cell in study_cells  # type: ignore[attr-defined]
    }


def label_rate_verdict(arxiv: Subject, scores: dict[float, tuple[float, ...]]) -> Claim:
    """Figure (a), where every rate but those given scores 0.7 with each seed."""
    outcomes = {}
    for rate, cell in zip(LABEL_RATES, figure_a.cells(arxiv), strict=True):
        values = scores.get(rate, (0.7, 0.7))[: max(map(len, scores.values()))]
        found = {s: {"scores": {"train": {"val": v, "test": v}}} for s, v in enumerate(values)}
        outcomes[cell.name] = Outcome(cell, found)
    return figure_a.conclude(arxiv, outcomes).claims[0]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({0.625: (0.79, 0.80)}, "yes"),
        ({0.5: (0.79, 0.80)}, "yes"),  # about
        ({0.625: (0.60, 0.90)}, "not clear"),
        ({0.625: (0.74,)}, "not clear"),  # one seed
        ({0.125: (0.79, 0.80)}, "no"),
        ({0.125: (0.60, 0.90)}, "not clear"),
    ],
)
def test_a_best_label_rate_must_be_clearly_over_those_farther_off(
    arxiv: Subject, scores: dict[float, tuple[float, ...]], expected: str
) -> None:
    assert label_rate_verdict(arxiv, scores).agrees == expected


def test_results_are_listed_with_the_papers_rows(arxiv: Subject) -> None:
    findings = results.conclude(arxiv, outcomes_of(results.cells(arxiv), 0.74))
    text = "\n".join(table_lines(findings.tables[0]))
    assert (
        "| GCNII (paper) | none | – | 2,148,648 |" in text
    )  # none of these models receives labels
    assert "| UniMP | train | 473,745 | 473,489 | +256 |" in text
    assert "74.00 ± 0.00 | 73.11 ± 0.21 | +0.89 |" in text
    assert "74.00 ± 0.00 | 73.77 | +0.23 |" in text  # with validation labels, in a separate row
    assert "473,489 without the input norm" in findings.notes[0]


def test_every_row_of_tables_7_and_8_has_the_papers_number(arxiv: Subject) -> None:
    for study in (inputs, layer):
        findings = study.conclude(arxiv, outcomes_of(study.cells(arxiv), 0.7))
        for row in findings.tables[0].rows:
            assert row.paper["test"].place == study.place, row.words


def test_mistakes_of_the_paper_are_noted() -> None:
    number = paper.with_inputs("ogbn-arxiv", "X", "MLP")
    assert number is not None
    assert "validation score" in number.note
    twice = [
        paper.with_inputs("ogbn-products", given, model)
        for given, model in (("X,A,Y", "GCN"), ("A,Y", "Graph Transformer"))
    ]
    assert all(n is not None and "two different cells" in n.note for n in twice)


def test_numbers_that_are_in_two_tables_are_equal() -> None:
    for data_set in OGB:
        own = paper.published(data_set)["UniMP"]["test"].value
        last = "Graph Transformer"
        if data_set == "ogbn-proteins":
            last += " + edge features"
        shown = paper.with_inputs(data_set, "X,A,Y", last)
        assert shown is not None
        assert shown.value == own
    for data_set in ("ogbn-products", "ogbn-arxiv"):
        for row, given, model in (
            ("GAT (sum attention)", "X,A", "GAT"),
            ("Transformer + gated residual", "X,A", "Graph Transformer"),
            ("… + train labels (UniMP)", "X,A,Y", "Graph Transformer"),
        ):
            one, two = paper.layer_row(data_set, row), paper.with_inputs(data_set, given, model)
            assert one is not None
            assert two is not None
            assert one.value == two.value


def test_a_group_of_a_few_nodes_decides_nothing(
    arxiv: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [0, 500, 400, 300, FEW_NODES, FEW_NODES - 1, 0, 0, 0, 1]

    def scores(run: tuple[str, int]) -> tuple[list[float], list[int]]:
        cell, seed = run
        over = 0.0 if cell.endswith("xa") else 0.05 + 0.001 * seed
        by_group = [0.5 + 0.01 * number + over + 0.001 * seed for number in range(len(counts))]
        by_group[5] = by_group[9] = 0.0  # against both claims
        return [s if n else math.nan for s, n in zip(by_group, counts, strict=True)], counts

    def runs_of(outcome: Outcome, place: Path) -> list[tuple[int, tuple[str, int]]]:
        return [(seed, (outcome.cell.name, seed)) for seed in (0, 1, 2)]

    monkeypatch.setattr(figures, "runs_of", runs_of)
    monkeypatch.setattr(figures, "scores_by_degree", scores)
    found = figure_d.conclude(arxiv, outcomes_of(figure_d.cells(arxiv), 0.7))
    assert [claim.agrees for claim in found.claims] == ["yes", "yes", "yes"]
    assert "3 of 3 steps" in found.claims[0].ours
    assert [row.words[0] for row in found.tables[0].rows][-2:] == ["9–16", "≥ 129"]
    assert found.figure is not None
    assert [len(s.points) for s in found.figure.series] == [4, 4]
    assert [count for _, count in found.figure.counts] == [n for n in counts if n]

    counts = [0, 20, 20, 0, 0, 0, 0, 0, 0, 0]
    found = figure_d.conclude(arxiv, outcomes_of(figure_d.cells(arxiv), 0.7))
    assert [claim.agrees for claim in found.claims] == ["not clear"] * 3  # but they are drawn
    assert found.figure is not None
    assert [len(s.points) for s in found.figure.series] == [2, 2]
