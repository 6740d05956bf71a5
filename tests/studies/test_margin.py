"""Margin similarity: equation 11, and the cases that it leaves open."""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.runs.loading import load_run
from unimp.studies.margin import _claims, correlations, margin_similarity, margins_of
from unimp.tasks.labels import UNLABELED

# Node 0 receives from 1 and 2 (its own class), 3 (another) and 4 (unknown), and from itself.
EDGES = [[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
LABELS = torch.tensor([0, 0, 0, 1, UNLABELED])


def hop_of(edges: list[list[int]]) -> Hop:
    return Graph.from_edges(edges, num_nodes=5).hop


def by_hand(weights: dict[int, float]) -> float:
    """The sum of equation 11 for node 0."""
    total = sum(weights.values())
    alpha = {j: w / total for j, w in weights.items()}
    return sum(math.exp(alpha[j]) - math.exp(alpha[k]) for j, k in product((1, 2), (3,)))


def test_it_is_the_formula_where_the_sum_is_positive() -> None:
    weight = torch.tensor([0.2, 0.3, 0.3, 0.1, 0.1])
    s = by_hand({1: 0.3, 2: 0.3, 3: 0.1, 4: 0.1})
    assert s > 0
    margin = margin_similarity(weight, hop_of(EDGES), LABELS, torch.tensor([0]))
    assert margin.mean == pytest.approx(math.log(1 + s))
    assert margin.as_printed == pytest.approx(math.log(1 + s))
    assert (margin.undefined, margin.nodes) == (0.0, 1)


def test_a_negative_sum_is_mirrored() -> None:
    weight = torch.tensor([0.0, 0.1, 0.1, 0.8, 0.0])
    s = by_hand({1: 0.1, 2: 0.1, 3: 0.8, 4: 0.0})
    assert s < -1  # equation 11 is not defined
    margin = margin_similarity(weight, hop_of(EDGES), LABELS, torch.tensor([0]))
    assert margin.mean == pytest.approx(-math.log(1 - s))
    assert math.isnan(margin.as_printed)
    assert margin.undefined == 1.0


def test_nodes_without_both_kinds_of_neighbors_are_left_out() -> None:
    hop = hop_of([[1, 2, 3, 0, 4], [0, 0, 0, 1, 3]])
    weight = torch.tensor([0.5, 0.25, 0.25, 1.0, 1.0])
    everyone = margin_similarity(weight, hop, LABELS, torch.arange(5))
    alone = margin_similarity(weight, hop, LABELS, torch.tensor([0]))
    assert everyone == alone
    none = margin_similarity(weight, hop, LABELS, torch.tensor([1, 3]))
    assert none.nodes == 0
    assert math.isnan(none.mean)


def test_equal_weights_have_no_margin() -> None:
    weight = torch.full((5,), 0.2)
    margin = margin_similarity(weight, hop_of(EDGES), LABELS, torch.tensor([0]))
    assert margin.mean == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("cell", "layers"), [("unimp-xay", 2), ("gat-ay", 2), ("gcn-xa", 1)])
def test_every_model_has_a_margin_for_each_layer(
    everything: SimpleNamespace, cell: str, layers: int
) -> None:
    found = margins_of(load_run(everything.place / cell / "seed-0"))
    assert len(found) == layers
    assert all(math.isfinite(margin.mean) for margin in found)
    assert len({margin.nodes for margin in found}) == 1


KEYS = [(inputs, model) for inputs in ("X,A", "X,A,Y") for model in ("GAT", "Graph Transformer")]


@pytest.mark.parametrize(
    ("margins", "agrees"),
    [
        # For each pair of model and inputs one number per seed; scores rise from pair to pair.
        ([(1, 1), (2, 2), (3, 3), (4, 5)], "yes"),
        ([(4, 5), (3, 3), (2, 2), (1, 1)], "no"),
        ([(1, 4), (2, 3), (3, 2), (4, 1)], "not clear"),
        ([(1,), (2,), (3,), (4,)], "not clear"),  # one seed
        ([(math.nan,)] * 4, "not measured"),
        ([(1, 1)] * 4, "not measured"),  # all the same
    ],
)
def test_a_correlation_must_be_clear_over_seeds(
    margins: list[tuple[float, ...]], agrees: str
) -> None:
    margin = {key: dict(enumerate(values)) for key, values in zip(KEYS, margins, strict=True)}
    test = {key: dict.fromkeys(margin[key], 0.1 * place) for place, key in enumerate(KEYS)}
    claims = _claims(margin, test)
    assert claims[0].agrees == agrees
    assert ("correlation: not defined" in claims[0].ours) == (agrees == "not measured")
    assert "nan" not in "".join(claim.ours for claim in claims)


def test_a_correlation_is_taken_seed_by_seed() -> None:
    ones = [{0: 1.0, 1: 3.0}, {0: 2.0, 1: 2.0}, {0: 3.0, 1: 1.0, 2: 0.0}]
    others = [{0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.2}, {0: 0.3, 1: 0.3, 2: 0.3}]
    assert correlations(ones, others) == pytest.approx({0: 1.0, 1: -1.0})
