"""ChangeableLogits that follow a change are those of computing everything again."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unimp.errors import GraphError, UnimpError
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.inference.incremental.recomputation import FullRecomputation
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.grand import GRAND
from unimp.model.masked_labels import MaskedLabels
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.tasks.task import Sizes

CLASSES = 3


def with_statistics(model: NodeModel) -> NodeModel:
    """Give the batch norms of a model other running statistics than 0 and 1."""
    for name, value in model.named_buffers():
        if "running" in name:
            value.uniform_(0.5, 2.0)
    return model


MODELS = {
    "unimp": lambda sizes: UniMP(sizes, width=4, heads=2, gate="all"),
    "without edge features": lambda sizes: UniMP(sizes, width=4, use_edge_features=False),
    "linear head": lambda sizes: UniMP(sizes, layers=2, width=4, head="linear"),
    "labels alone": lambda sizes: UniMP(sizes, width=4, use_features=False, label_width=6),
    "features alone": lambda sizes: UniMP(sizes, width=4, use_labels=False),
    "no residual": lambda sizes: UniMP(sizes, width=4, residual="none"),
    "propagated labels": lambda sizes: UniMP(sizes, width=4, propagated_labels=True),
    "gcn with propagated labels": lambda sizes: UniMP(
        sizes, layers=2, width=4, layer="gcn", use_features=False, propagated_labels=True
    ),
    "one layer": lambda sizes: UniMP(sizes, layers=1, width=4),
    "gcn": lambda sizes: UniMP(sizes, width=4, layer="gcn", residual="none"),
    "gat": lambda sizes: UniMP(sizes, width=4, layer="gat", residual="none"),
    "sage": lambda sizes: UniMP(sizes, width=4, layer="sage", residual="simple"),
    "without a norm": lambda sizes: UniMP(sizes, width=4, norm="none"),
    "batch norm": lambda sizes: with_statistics(UniMP(sizes, width=4, norm="batch")),
    "gcn, batch norm": lambda sizes: with_statistics(UniMP(sizes, layer="gcn", norm="batch")),
    "appnp": lambda sizes: APPNP(sizes, width=4, steps=4),
    "grand": lambda sizes: GRAND(sizes, width=4, steps=4),
    "grand with batch norm": lambda sizes: GRAND(sizes, width=4, steps=2, norm="batch"),
    "gcn-lpa": lambda sizes: GCNLPA(sizes, width=4),
    "mlp": lambda sizes: MLP(sizes, width=4),
}
PROPAGATED = [name for name in MODELS if name.endswith("propagated labels")]


def model_of(name: str, *, multilabel: bool = False, seed: int = 0) -> NodeModel:
    torch.manual_seed(seed)
    sizes = Sizes(features=5, edge_features=2, classes=CLASSES, multilabel=multilabel)
    return MODELS[name](sizes).double().eval()


def graph_of(seed: int, nodes: int = 25, edges: int = 60) -> Graph:
    """With a hub, duplicate edges, self-loops, and nodes without edges."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes - 2, (2, edges), generator=generator)
    ends[1, : edges // 5] = 0
    ends[:, -5:] = ends[:, :5]
    x = torch.randn(nodes, 5, generator=generator)
    attr = torch.randn(edges, 2, generator=generator)
    graph = Graph.from_edges(ends, x=x, edge_attr=attr)
    return Graph(graph.indptr, graph.source, graph.edge_id, x.double(), attr.double())


def labels_of(graph: Graph, seed: int, *, multilabel: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    shape = (graph.num_nodes, CLASSES) if multilabel else (graph.num_nodes,)
    labels = torch.randint(2 if multilabel else CLASSES, shape, generator=generator)
    labels[torch.rand(graph.num_nodes, generator=generator) < 0.4] = -1
    return labels.to(torch.int8) if multilabel else labels


@torch.no_grad()
def recomputed(model: NodeModel, graph: Graph, observed: Tensor) -> Tensor:
    graph = model.prepare(graph)
    x = model.features(graph, observed)
    logits: Tensor = model(x, observed, [graph.hop] * model.num_layers)
    return logits.float()


def prepared(model: NodeModel, graph: Graph) -> Graph:
    return model.prepare(graph)


def some_change(graph: Graph, observed: Tensor, seed: int) -> Change:
    """Labels shown, hidden and made others, and edges gone, as chance has it."""
    generator = torch.Generator().manual_seed(200 + seed)
    count = int(torch.randint(4, (), generator=generator))
    nodes = torch.randperm(graph.num_nodes, generator=generator)[:count]
    labels = observed[torch.randperm(graph.num_nodes, generator=generator)[:count]]
    slots = torch.randint(graph.num_edges, (2,), generator=generator)
    pairs = graph.edge_index[:, slots].long()
    pairs = pairs[:, pairs[0] != pairs[1]]
    kind = seed % 3
    return Change(
        nodes if kind != 1 else None, labels if kind != 1 else None, pairs if kind else None
    )


def changed(graph: Graph, observed: Tensor, change: Change) -> tuple[Graph, Tensor]:
    return FullRecomputation(lambda g, o: o, graph, observed, CLASSES)._changed(change)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), chunk=st.sampled_from([3, 40, 10_000]))
def test_logits_after_changes_equal_a_full_recomputation(name: str, seed: int, chunk: int) -> None:
    graph = graph_of(seed)
    model, observed = model_of(name, seed=seed), labels_of(graph, seed)
    incremental = IncrementalLogits(model, prepared(model, graph), observed, chunk_edges=chunk)
    assert torch.allclose(incremental.logits, recomputed(model, graph, observed), atol=1e-6)
    changes = [some_change(graph, observed, seed + k) for k in range(4)]
    targets = [torch.tensor([0, seed % 25]).unique(), torch.arange(25), torch.tensor([3, 24])]
    targets.append(torch.empty(0, dtype=torch.int64))
    for change, wanted, found in zip(
        changes, targets, incremental.after(changes, targets), strict=True
    ):
        expected = recomputed(model, *changed(graph, observed, change))
        assert torch.allclose(found, expected[wanted], atol=1e-6)


@pytest.mark.parametrize("name", ["unimp", "gcn", "appnp", "grand", *PROPAGATED])
@settings(max_examples=4)
@given(seed=st.integers(0, 10_000))
def test_committed_changes_give_the_states_of_the_changed_graph(name: str, seed: int) -> None:
    graph = graph_of(seed)
    model, observed = model_of(name, seed=seed), labels_of(graph, seed)
    incremental = IncrementalLogits(model, prepared(model, graph), observed)
    whole = FullRecomputation(lambda g, o: recomputed(model, g, o), graph, observed, CLASSES)
    for k in range(3):
        change = some_change(whole.graph, whole.observed, seed + k)
        incremental.commit(change)
        whole.commit(change)
        assert torch.allclose(incremental.logits, whole.logits, atol=1e-6)
        assert torch.allclose(incremental.without_labels, whole.without_labels, atol=1e-6)
    change, everyone = some_change(whole.graph, whole.observed, seed + 3), torch.arange(25)
    (one,), (other,) = (a.after([change], [everyone]) for a in (incremental, whole))
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_the_states_that_some_nodes_depend_on_are_enough_for_their_logits(
    name: str, seed: int
) -> None:
    graph = graph_of(seed, nodes=40, edges=40)
    model, observed = model_of(name, seed=seed), labels_of(graph, seed)
    around = torch.tensor([seed % 40, (seed // 40) % 40]).unique()
    incremental = IncrementalLogits(model, prepared(model, graph), observed, around=around)
    assert set(around.tolist()) <= set(incremental.held.tolist())
    assert torch.allclose(
        incremental.logits[around], recomputed(model, graph, observed)[around], atol=1e-6
    )
    nothing = torch.full_like(observed, -1)
    bare = recomputed(model, graph, nothing)[around]
    assert torch.allclose(incremental.without_labels[around], bare, atol=1e-6)
    change = some_change(graph, observed, seed)
    (found,) = incremental.after([change], [around])
    expected = recomputed(model, *changed(graph, observed, change))[around]
    assert torch.allclose(found, expected, atol=1e-6)
    if model.num_layers:
        with pytest.raises(GraphError, match="around"):
            incremental.commit(change)


@pytest.mark.parametrize("name", ["gcn", "appnp", "grand", "unimp", "gcn-lpa", *PROPAGATED])
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_every_edge_can_be_removed_from_a_stored_part_of_a_directed_graph(
    name: str, seed: int
) -> None:
    """Those too that lead out of the part: their sources' other edges weigh more without them."""
    graph = graph_of(seed, nodes=40, edges=45)
    model, observed = model_of(name, seed=seed), labels_of(graph, seed)
    around = torch.tensor([seed % 38, (seed // 38) % 38]).unique()
    incremental = IncrementalLogits(model, prepared(model, graph), observed, around=around)
    pairs = [
        pair for pair in graph.edge_index.long().t().unique(dim=0).tolist() if len({*pair}) > 1
    ]
    changes = [Change.remove_edges([pair]) for pair in pairs]
    changes.append(Change.remove_edges([*pairs[::3], *pairs[:9]]))
    found = incremental.after(changes, [around] * len(changes))
    for change, logits in zip(changes, found, strict=True):
        expected = recomputed(model, *changed(graph, observed, change))[around]
        assert torch.allclose(logits, expected, atol=1e-6), change.without


@pytest.mark.parametrize("name", ["gcn", "appnp", "grand"])
def test_removing_an_edge_out_of_the_stored_part_changes_the_other_edges_of_its_source(
    name: str,
) -> None:
    edges = torch.tensor([[1, 2, 2, 2], [0, 1, 5, 5]])
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edges(edges, num_nodes=8, x=torch.randn(8, 5, generator=generator))
    graph = Graph(graph.indptr, graph.source, graph.edge_id, graph.x.double(), None)
    model, target = model_of(name), torch.tensor([0])
    observed = labels_of(graph, 0)
    incremental = IncrementalLogits(model, prepared(model, graph), observed, around=target)
    assert 5 not in incremental.held
    gone = Change.remove_edges([(2, 5)])
    (found,) = incremental.after([gone], [target])
    assert torch.allclose(
        found, recomputed(model, *changed(graph, observed, gone))[target], atol=1e-6
    )
    assert not torch.allclose(found, incremental.logits[target], atol=1e-6)


@pytest.mark.parametrize("name", ["unimp", "propagated labels"])
def test_binary_labels_change_by_rows(name: str) -> None:
    graph = graph_of(1)
    model, observed = model_of(name, multilabel=True), labels_of(graph, 1, multilabel=True)
    incremental = IncrementalLogits(model, prepared(model, graph), observed)
    known = torch.nonzero((observed >= 0).any(1)).squeeze(1)
    change = Change.hide(known[:4])
    (found,) = incremental.after([change], [torch.arange(25)])
    assert torch.allclose(found, recomputed(model, *changed(graph, observed, change)), atol=1e-6)
    assert not torch.allclose(found, incremental.logits)


class Counting:
    """Writes down how many in-edges each layer is given."""

    def __init__(self, model: NodeModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.edges: list[int] = []
        inner = model.propagate

        def propagate(h: Tensor, hop: Any, index: int) -> Tensor:
            self.edges.append(hop.num_edges)
            return inner(h, hop, index)

        monkeypatch.setattr(model, "propagate", propagate)


def chain_and_hub(length: int = 50, leaves: int = 400) -> Graph:
    """0 → 1 → 2 → …, and many nodes that all have an edge to the last of them and from it."""
    chain = torch.stack((torch.arange(length - 1), torch.arange(1, length)))
    others = torch.arange(length, length + leaves)
    hub = torch.full_like(others, length - 1)
    edges = torch.cat((chain, torch.stack((others, hub)), torch.stack((hub, others))), 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(length + leaves, 5, generator=generator).double()
    attr = torch.randn(edges.shape[1], 2, generator=generator).double()
    graph = Graph.from_edges(edges, x=x, edge_attr=attr)
    return Graph(graph.indptr, graph.source, graph.edge_id, x, attr)


def test_only_rows_between_a_change_and_a_target_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, model = chain_and_hub(), model_of("unimp")
    incremental = IncrementalLogits(
        model, prepared(model, graph), torch.zeros(graph.num_nodes, dtype=torch.int64)
    )
    counting = Counting(model, monkeypatch)
    # From 10 the change goes to 11, 12 and 13, and 13 rests on no other path.
    incremental.after([Change.hide([10])], [torch.tensor([13])])
    assert sum(counting.edges) <= 2 + 2 + 1
    counting.edges.clear()
    assert incremental.after([Change.hide([10])], [torch.tensor([14])])[0].equal(
        incremental.logits[[14]]
    )
    assert counting.edges == []
    # The hub is computed in two layers, its 400 neighbors in none but for the one that changed.
    incremental.after([Change.hide([60])], [torch.tensor([61])])
    assert sum(counting.edges) <= 3 * (401 + 2)


def test_a_label_that_stays_the_same_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(0)
    model, observed = model_of("unimp"), labels_of(graph, 0)
    incremental = IncrementalLogits(model, prepared(model, graph), observed)
    counting, everyone = Counting(model, monkeypatch), torch.arange(25)
    same = Change(everyone, observed.clone(), torch.tensor([[23], [24]]))  # no such edge either
    assert incremental.after([same], [everyone])[0].equal(incremental.logits)
    assert counting.edges == []


def test_a_self_loop_cannot_be_removed() -> None:
    graph, model = graph_of(0), model_of("unimp")
    observed = labels_of(graph, 0)
    for answers in (
        IncrementalLogits(model, prepared(model, graph), observed),
        FullRecomputation(lambda g, o: recomputed(model, g, o), graph, observed, CLASSES),
    ):
        with pytest.raises(GraphError, match="node 3 to itself"):
            answers.after([Change.remove_edges([(3, 3)])], [torch.tensor([0])])


@pytest.mark.parametrize(
    "change",
    [
        Change(torch.tensor([-1]), torch.tensor([1])),
        Change(torch.tensor([25]), torch.tensor([1])),
        Change(torch.tensor([2]), torch.tensor([-5])),
        Change(torch.tensor([2]), torch.tensor([CLASSES])),
        Change(torch.tensor([2, 2]), torch.tensor([0, 1])),
        Change(torch.tensor([2, 3]), torch.tensor([0])),
        Change(torch.tensor([2]), torch.tensor([[0, 1, 0]])),
        Change(torch.tensor([2.0])),
        Change(labels=torch.tensor([1])),
        Change.remove_edges([(0, -1)]),
        Change.remove_edges([(0, 25)]),
    ],
)
def test_an_invalid_change_is_refused_and_changes_nothing(change: Change) -> None:
    graph, model = graph_of(0), model_of("unimp")
    observed, target = labels_of(graph, 0), torch.tensor([0])
    for answers in (
        IncrementalLogits(model, prepared(model, graph), observed),
        IncrementalLogits(model, prepared(model, graph), observed, around=target),
        FullRecomputation(lambda g, o: recomputed(model, g, o), graph, observed, CLASSES),
    ):
        with pytest.raises(UnimpError):
            answers.after([change], [target])
        with pytest.raises(UnimpError):
            answers.commit(change)
        with pytest.raises(GraphError, match="-1"):
            answers.after([Change()], [torch.tensor([-1])])
        assert answers.observed.equal(observed) or len(answers.observed) < len(observed)


def test_a_wrapped_module_has_no_states_to_store() -> None:
    graph = graph_of(0)
    sizes = Sizes(features=5, edge_features=0, classes=CLASSES, multilabel=False)
    model = MaskedLabels(nn.Identity(), sizes, width=5)
    with pytest.raises(GraphError, match="FullRecomputation"):
        IncrementalLogits(model, graph, labels_of(graph, 0))


def test_nodes_that_are_stored_only_as_inputs_have_no_logits() -> None:
    graph, model = chain_and_hub(), model_of("unimp")
    observed = torch.zeros(graph.num_nodes, dtype=torch.int64)
    incremental = IncrementalLogits(
        model, prepared(model, graph), observed, around=torch.tensor([13])
    )
    assert sorted(incremental.held.tolist()) == [10, 11, 12, 13]
    for node in (12, 20):
        with pytest.raises(GraphError, match=f"node {node} are not stored"):
            incremental.after([Change.hide([10])], [torch.tensor([node])])


@pytest.mark.parametrize("name", ["unimp", "gcn"])
def test_a_commit_that_fails_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(0)
    model, observed = model_of(name), labels_of(graph, 0)
    incremental = IncrementalLogits(model, prepared(model, graph), observed)
    before, everyone = incremental.logits, torch.arange(25)
    pairs = graph.edge_index.long().t()
    gone = Change.remove_edges(pairs[pairs[:, 0] != pairs[:, 1]][:3])
    with monkeypatch.context() as patch:
        patch.setattr(model, "read_out", lambda h: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            incremental.commit(gone)
    assert incremental.logits.equal(before)
    assert incremental.after([Change.hide(everyone)], [everyone])[0].equal(
        IncrementalLogits(model, prepared(model, graph), observed).after(
            [Change.hide(everyone)], [everyone]
        )[0]
    )
