"""The UniMP model: its size, which inputs reach its output, and invalid options."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from unimp.config.choices import ALL
from unimp.config.options import BatchOptions
from unimp.errors import ModelError
from unimp.graph.features import rows_of
from unimp.graph.graph import Graph
from unimp.model.node_model import count_parameters
from unimp.model.unimp import UniMP
from unimp.ops.sampling import sample_hops
from unimp.tasks.labels import UNLABELED, LabelMask
from unimp.tasks.task import Sizes
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.masks import Masks

Maker = Callable[..., Graph]

ARXIV = Sizes(features=128, edge_features=0, classes=40, multilabel=False)
PRODUCTS = Sizes(features=100, edge_features=0, classes=47, multilabel=False)
PROTEINS = Sizes(features=8, edge_features=8, classes=112, multilabel=True)
PROTEINS_MODEL: dict[str, Any] = {
    "layers": 7,
    "width": 64,
    "heads": 4,
    "residual": "simple",
    "input_norm": False,
    "head": "linear",
    "feature_encoder": True,
    "edge_encoder": "shared",
}


@pytest.mark.parametrize(
    ("sizes", "options", "parameters"),
    [
        # The paper does not count the input norm of arxiv, 2 × 128.
        (ARXIV, {"gate": "last"}, 473_489 + 256),
        (ARXIV, {"gate": "last", "input_norm": False}, 473_489),
        (ARXIV, {"gate": "last", "input_norm": False, "use_labels": False}, 468_369),
        (ARXIV, {"gate": "all"}, 475_283),
        (PROTEINS, PROTEINS_MODEL, 1_909_104),
        (PROTEINS, PROTEINS_MODEL | {"use_labels": False}, 1_879_664),
        (PRODUCTS, {"heads": 4, "gate": "last"}, 1_578_005),
    ],
)
def test_the_number_of_parameters_is_that_of_the_paper(
    sizes: Sizes, options: dict[str, Any], parameters: int
) -> None:
    assert count_parameters(UniMP(sizes, **options)) == parameters


SINGLE = Sizes(features=6, edge_features=3, classes=4, multilabel=False)
MULTI = Sizes(features=6, edge_features=3, classes=5, multilabel=True)
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "eq4": {"gate": "all"},
    "no gate, linear head": {"residual": "simple", "head": "linear"},
    "no residual": {"residual": "none"},
    "encoder, shared": {"feature_encoder": True, "edge_encoder": "shared", "head": "linear"},
    "labels alone": {"use_features": False},
    "propagated labels": {"propagated_labels": True},
    "propagated labels alone": {"use_features": False, "propagated_labels": True},
}


def small(sizes: Sizes, **options: Any) -> UniMP:
    """A small model in evaluation mode."""
    torch.manual_seed(0)
    return UniMP(sizes, **{"layers": 3, "width": 8, "heads": 2} | options).eval()


@pytest.fixture(scope="module")
def graph(random_graph: Maker) -> Graph:
    return random_graph(30, 150, features=6, edge_features=3)


def random_labels(sizes: Sizes, num_nodes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not sizes.multilabel:
        return torch.randint(sizes.classes, (num_nodes,), generator=generator)
    labels = torch.randint(-1, 2, (num_nodes, sizes.classes), generator=generator)
    return labels.to(torch.int8)


def logits(model: UniMP, graph: Graph, observed: Tensor) -> Tensor:
    with torch.no_grad():
        return model(model.features(graph, observed), observed, [graph.hop] * model.num_layers)


def known_nodes(graph: Graph) -> Tensor:
    return torch.arange(graph.num_nodes) % 4 != 0


def masks_of(graph: Graph) -> Masks:
    return Masks(known_nodes(graph), 0.5, redraw="epoch", seed=0)


def with_other_labels(labels: Tensor, nodes: Tensor, sizes: Sizes) -> Tensor:
    """Give each of the nodes another label than before."""
    others = 1 - labels.clamp(min=0) if sizes.multilabel else (labels + 1) % sizes.classes
    changed = torch.where(nodes if labels.ndim == 1 else nodes[:, None], others, labels)
    assert bool((changed != labels)[nodes].all())
    return changed


def logits_in_training(model: UniMP, graph: Graph, labels: Tensor, regime: Any) -> Tensor:
    """The logits of all batches of an epoch, from labels to model as training computes them."""
    options = BatchOptions(regime=regime, prune=False, parts=2, fanout=[4], batch_size=5, workers=0)
    propagate = model.propagated if model.takes_propagated_labels else None
    batches = make_batches(
        graph,
        labels,
        masks_of(graph),
        options,
        num_layers=model.num_layers,
        changes=BatchChanges(propagate=propagate),
    )
    with torch.no_grad():
        return torch.cat([model(b.x, b.observed, b.hops) for b in batches.epoch(1)])


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("sizes", [SINGLE, MULTI], ids=["classes", "binary tasks"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_labels_cannot_influence_the_output(
    sizes: Sizes, variant: str, regime: str, graph: Graph
) -> None:
    """Labels of hidden and unknown nodes really change; those of observed nodes are the control."""
    model = small(sizes, **VARIANTS[variant])
    mask = masks_of(graph).at(1, 0)
    assert int(mask.hidden.sum()) > 5
    labels = random_labels(sizes, graph.num_nodes, 1)
    hidden_changed = with_other_labels(labels, ~mask.observed, sizes)
    observed_changed = with_other_labels(labels, mask.observed, sizes)
    before = logits_in_training(model, graph, labels, regime)
    assert torch.equal(before, logits_in_training(model, graph, hidden_changed, regime))
    assert not torch.equal(before, logits_in_training(model, graph, observed_changed, regime))


@pytest.mark.parametrize("variant", ["paper", "propagated labels"])
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_a_leak_of_hidden_labels_would_change_the_output(
    regime: str, variant: str, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: with a mask that reveals everything, the output changes."""
    model = small(SINGLE, **VARIANTS[variant])
    labels = random_labels(SINGLE, graph.num_nodes, 1)
    changed = with_other_labels(labels, masks_of(graph).at(1, 0).hidden, SINGLE)
    monkeypatch.setattr(LabelMask, "reveal", lambda mask, labels: labels)
    found = [logits_in_training(model, graph, given, regime) for given in (labels, changed)]
    assert not torch.equal(*found)


@pytest.mark.parametrize("sizes", [SINGLE, MULTI], ids=["classes", "binary tasks"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_renumbering_nodes_permutes_outputs(sizes: Sizes, variant: str, graph: Graph) -> None:
    model = small(sizes, **VARIANTS[variant])
    observed = random_labels(sizes, graph.num_nodes, 1)
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(3))
    moved = logits(model, graph.renumber(order), observed[order])
    expected = logits(model, graph, observed)[order]
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_exhaustive_hops_give_the_logits_of_the_full_batch(variant: str, graph: Graph) -> None:
    model = small(SINGLE, **VARIANTS[variant])
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    seeds = torch.tensor([29, 4, 0])
    nodes, hops = sample_hops(graph, seeds, [ALL] * 3, seed=0)
    with torch.no_grad():
        x = model.features(graph, observed)
        got = model(rows_of(x, nodes), observed[nodes], hops)
    expected = logits(model, graph, observed)[seeds]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_features_and_labels_are_added(graph: Graph) -> None:
    model = small(SINGLE, input_norm=False)
    observed = torch.full((graph.num_nodes,), UNLABELED)
    observed[3] = 2
    embedded = model.embed(graph.x, observed)
    assert model.label_embedding is not None
    expected = graph.x.clone()  # type: ignore[union-attr]
    expected[3] += model.label_embedding.table.weight[2]  # type: ignore[union-attr, index]
    assert torch.equal(embedded, expected)


def test_the_other_initial_weights_do_not_depend_on_propagated_labels() -> None:
    plain, more = small(SINGLE), small(SINGLE, propagated_labels=True)
    weights = more.state_dict()
    assert len(weights) > len(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_sparse_features_give_the_logits_of_dense_ones(graph: Graph) -> None:
    dense = graph.x * (graph.x > 0.5)  # type: ignore[operator]
    sizes = Sizes(features=6, edge_features=3, classes=4, multilabel=False, sparse=True)
    model = small(sizes, feature_encoder=True)
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    sparse = graph.with_features(sp.csr_array(dense.numpy()))
    expected = logits(model, graph.with_features(dense), observed)
    torch.testing.assert_close(logits(model, sparse, observed), expected)


def test_without_features_as_inputs_features_have_no_influence(graph: Graph) -> None:
    model = small(SINGLE, use_features=False)
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    expected = logits(model, graph, observed)
    for x in (None, torch.randn(graph.num_nodes, 6)):
        assert torch.equal(logits(model, graph.with_features(x), observed), expected)
    assert not model.takes_features


def test_without_labels_as_inputs_labels_have_no_influence(graph: Graph) -> None:
    model = small(SINGLE, use_labels=False)
    outs = [logits(model, graph, random_labels(SINGLE, graph.num_nodes, seed)) for seed in (1, 2)]
    assert torch.equal(*outs)
    assert not model.takes_labels


def test_without_edge_features_as_inputs_they_have_no_influence(graph: Graph) -> None:
    model = small(SINGLE, use_edge_features=False)
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    expected = logits(model, graph.without_edge_attr(), observed)
    assert torch.equal(logits(model, graph, observed), expected)
    assert not model.takes_edge_features


def test_edge_features_reach_the_output(graph: Graph) -> None:
    model = small(SINGLE)
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    other = Graph(graph.indptr, graph.source, graph.edge_id, graph.x, -graph.edge_attr)  # type: ignore[operator]
    assert not torch.equal(logits(model, graph, observed), logits(model, other, observed))


def test_prediction_is_deterministic_and_training_uses_dropout(graph: Graph) -> None:
    model = small(SINGLE, dropout=0.5)
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    assert torch.equal(logits(model, graph, observed), logits(model, graph, observed))
    model.train()
    assert not torch.equal(logits(model, graph, observed), logits(model, graph, observed))


def test_input_dropout_can_be_set_separately(graph: Graph) -> None:
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    model = small(SINGLE, dropout=0.5, input_dropout=0.0).train()
    assert torch.equal(model.embed(graph.x, observed), model.embed(graph.x, observed))
    model = small(SINGLE, dropout=0.5).train()
    assert not torch.equal(model.embed(graph.x, observed), model.embed(graph.x, observed))


def test_layers_share_one_edge_encoder_or_have_separate_ones() -> None:
    shared = small(SINGLE, edge_encoder="shared", head="linear")
    own = small(SINGLE, edge_encoder="per-layer", head="linear")
    assert len({id(layer.edge_encoder) for layer in shared.layers}) == 1
    assert len({id(layer.edge_encoder) for layer in own.layers}) == 3
    one = 3 * 16 + 16
    assert count_parameters(own) - count_parameters(shared) == 2 * one


def test_gates_are_in_the_chosen_layers() -> None:
    def gates(**options: Any) -> list[bool]:
        return [layer.gate is not None for layer in small(SINGLE, **options).layers]

    assert gates(gate="last") == [False, False, True]
    assert gates(gate="all") == [True, True, True]
    assert gates(gate="none") == [False, False, False]
    assert gates(gate="all", residual="simple") == [False, False, False]
    with_bias, without = small(SINGLE, gate="all"), small(SINGLE, gate="all", gate_bias=False)
    assert count_parameters(with_bias) - count_parameters(without) == 3


@pytest.mark.parametrize("variant", ["paper", "no gate, linear head"])
def test_attention_weights_have_one_number_per_edge_and_head_and_sum_to_one(
    variant: str, graph: Graph
) -> None:
    model = small(SINGLE, **VARIANTS[variant])
    observed = random_labels(SINGLE, graph.num_nodes, 1)
    weights: Sequence[Tensor] = model.attention_weights(graph.x, observed, [graph.hop] * 3)
    assert [tuple(w.shape) for w in weights] == [(graph.num_edges, 2)] * 3
    for layer in weights:
        sums = torch.zeros(graph.num_nodes, 2).index_add(0, graph.target, layer)
        has_edges = (graph.in_degree > 0).float()
        torch.testing.assert_close(sums, has_edges[:, None].expand_as(sums))


@pytest.mark.parametrize("sizes", [SINGLE, MULTI], ids=["classes", "binary tasks"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_receives_a_gradient(sizes: Sizes, variant: str, graph: Graph) -> None:
    model = small(sizes, **VARIANTS[variant]).train()
    observed = random_labels(sizes, graph.num_nodes, 1)
    out = model(model.features(graph, observed), observed, [graph.hop] * 3)
    assert out.shape == (graph.num_nodes, sizes.classes)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize(
    ("sizes", "options", "fix"),
    [
        (SINGLE, {"edge_encoder": "shared"}, "an edge encoder per layer"),
        (Sizes(9, 0, 4, False, sparse=True), {}, "use a feature encoder"),
        (Sizes(0, 0, 4, False), {"use_labels": False}, "use labels as inputs"),
        (SINGLE, {"use_labels": False, "use_features": False}, "neither features nor labels"),
        (SINGLE, {"use_labels": False, "propagated_labels": True}, "propagated_labels"),
    ],
)
def test_invalid_options_are_refused_with_the_fix(
    sizes: Sizes, options: dict[str, Any], fix: str
) -> None:
    with pytest.raises(ModelError) as caught:
        UniMP(sizes, **options)
    assert fix in str(caught.value)
