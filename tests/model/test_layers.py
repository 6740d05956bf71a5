"""The layer equals PyG's layer and the equations; encoders of features and labels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import (
    EdgeEncoder,
    FeatureEncoder,
    GraphTransformerLayer,
    LabelEncoder,
    LabelTable,
)
from unimp.ops.sampling import sample_hops
from unimp.tasks.labels import UNLABELED

Maker = Callable[..., Graph]
IN, WIDTH, HEADS, EDGE_WIDTH = 6, 5, 3, 4


@pytest.fixture(scope="module")
def transformer_conv() -> Any:
    """PyG's layer; importorskip hides the deprecation warnings of its import."""
    reason = "parity needs torch_geometric: pip install 'unimp[dev]'"
    return pytest.importorskip("torch_geometric.nn", reason=reason).TransformerConv


def hop_named(name: str, random_graph: Maker, *, edges: bool) -> Hop:
    """A hop in double precision; `random` has a hub, isolated nodes and duplicate edges."""
    if name == "one edge":
        attr = torch.randn(1, EDGE_WIDTH, generator=torch.Generator().manual_seed(0))
        hop = Graph.from_edges([[2], [0]], num_nodes=3, edge_attr=attr).hop
    elif name == "bipartite":
        graph = random_graph(40, 200, edge_features=EDGE_WIDTH)
        targets = torch.tensor([3, 0, 39, 8])
        hop = sample_hops(graph, targets, [4], seed=0)[1][0]
    else:
        hop = random_graph(seed=int(name[-1]), edge_features=EDGE_WIDTH).hop
    attr = None if hop.edge_attr is None or not edges else hop.edge_attr.double()
    return Hop(hop.indptr, hop.source, hop.num_sources, attr)


def layer_with(residual: str, *, concat: bool, edges: bool, **options: Any) -> Any:
    """A layer in double precision with random parameters, including biases."""
    torch.manual_seed(0)
    encoder = EdgeEncoder(EDGE_WIDTH, HEADS * WIDTH) if edges else None
    layer = GraphTransformerLayer(
        IN, WIDTH, heads=HEADS, concat=concat, residual=residual, edge_encoder=encoder, **options
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def copy_weights(layer: GraphTransformerLayer, conv: Any) -> dict[str, tuple[Any, Any]]:
    """Copy our weights to PyG's layer; return (ours, theirs) of each parameter to compare."""
    pairs = {"query": "lin_query", "key": "lin_key", "value": "lin_value", "skip": "lin_skip"}
    shared = {}
    for ours, theirs in pairs.items():
        module = getattr(layer, ours)
        if module is None:
            continue
        for part in ("weight", "bias"):
            shared[f"{ours}.{part}"] = getattr(module, part), getattr(getattr(conv, theirs), part)
    if layer.edge_encoder is not None:
        nn.init.zeros_(layer.edge_encoder.bias)  # PyG has none
        shared["edge.weight"] = layer.edge_encoder.weight, conv.lin_edge.weight
    with torch.no_grad():
        for ours, theirs in shared.values():
            theirs.copy_(ours)
        if layer.gate is not None:
            conv.lin_beta.weight.copy_(as_pyg_gate(layer.gate.weight))
    return shared


def as_pyg_gate(weight: Tensor) -> Tensor:
    """Our gate multiplies [r; ĥ; ĥ−r], PyG's gate [ĥ; r; ĥ−r]."""
    kept, message, difference = weight.chunk(3, 1)
    return torch.cat((message, kept, difference), 1)


@pytest.mark.parametrize("residual", ["none", "simple", "gated"])
@pytest.mark.parametrize("concat", [True, False], ids=["concat", "averaged"])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("name", ["random 0", "random 1", "one edge", "bipartite"])
def test_the_layer_equals_pygs_transformer_conv_forward_and_backward(
    name: str, edges: bool, concat: bool, residual: str, random_graph: Maker, transformer_conv: Any
) -> None:
    hop = hop_named(name, random_graph, edges=edges)
    layer = layer_with(residual, concat=concat, edges=edges, gate_bias=False)
    conv = transformer_conv(
        IN,
        WIDTH,
        heads=HEADS,
        concat=concat,
        beta=residual == "gated",
        edge_dim=EDGE_WIDTH if edges else None,
        root_weight=residual != "none",
    ).double()
    shared = copy_weights(layer, conv)
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64, requires_grad=True)
    other = h.detach().clone().requires_grad_()
    edge_index = torch.stack((hop.source, hop.target)).long()

    ours = layer(h, hop)
    theirs = conv((other, other[: hop.num_targets]), edge_index, hop.edge_attr)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)

    direction = torch.randn_like(ours)
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    torch.testing.assert_close(h.grad, other.grad, rtol=1e-9, atol=1e-10)
    for which, (mine, yours) in shared.items():
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-9, atol=1e-10, msg=which)
    if layer.gate is not None:
        gate_grad = as_pyg_gate(layer.gate.weight.grad)
        torch.testing.assert_close(gate_grad, conv.lin_beta.weight.grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gate_bias", [True, False])
@pytest.mark.parametrize("concat", [True, False])
def test_the_gate_equals_the_formula_with_concatenation(
    concat: bool, gate_bias: bool, random_graph: Maker
) -> None:
    hop = hop_named("bipartite", random_graph, edges=True)
    layer = layer_with("gated", concat=concat, edges=True, gate_bias=gate_bias)
    assert (layer.gate.bias is not None) == gate_bias
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64)
    message = layer.messages(h, hop)
    message = message.flatten(1) if concat else message.mean(1)
    kept = layer.skip(h[: hop.num_targets])
    beta = torch.sigmoid(layer.gate(torch.cat((kept, message, message - kept), 1)))
    expected = beta * kept + (1 - beta) * message
    torch.testing.assert_close(layer(h, hop), expected, rtol=1e-12, atol=1e-12)


def test_the_bias_of_the_edge_encoder_is_added_to_every_message(random_graph: Maker) -> None:
    hop = hop_named("random 0", random_graph, edges=True)
    layer = layer_with("none", concat=True, edges=True)
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64)
    with torch.no_grad():
        biased = layer(h, hop)
        bias = layer.edge_encoder.bias.clone()
        layer.edge_encoder.bias.zero_()
        # Softmax weights sum to one, so each target with in-edges receives the bias once.
        received = (hop.indptr.diff() > 0).double()[:, None] * bias
        torch.testing.assert_close(biased, layer(h, hop) + received)


@pytest.mark.parametrize("residual", ["none", "simple", "gated"])
def test_a_node_without_in_edges_gets_only_its_residual(residual: str, random_graph: Maker) -> None:
    hop = hop_named("random 0", random_graph, edges=True)
    layer = layer_with(residual, concat=True, edges=True)
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64)
    out = layer(h, hop)
    changed = h.clone()
    changed[:-2] = 0.0
    assert torch.equal(out[-2:], layer(changed, hop)[-2:])
    if residual == "none":
        assert bool((out[-2:] == 0).all())
    if residual == "simple":
        torch.testing.assert_close(out[-2:], layer.skip(h[-2:]))


def test_query_key_and_value_are_initialized_xavier_uniform_with_zero_bias() -> None:
    torch.manual_seed(0)
    layer = GraphTransformerLayer(100, 32, heads=4)
    bound = (6 / (100 + 128)) ** 0.5
    for linear in (layer.query, layer.key, layer.value):
        weight = linear.weight.detach()
        assert bool((linear.bias == 0).all())
        assert 0.95 * bound < float(weight.abs().max()) <= bound
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_attention_dropout_is_only_used_in_training(random_graph: Maker) -> None:
    hop = hop_named("random 0", random_graph, edges=True)
    layer = layer_with("simple", concat=True, edges=True, attention_dropout=0.5)
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64)
    assert not torch.equal(layer(h, hop), layer(h, hop))
    layer.eval()
    assert torch.equal(layer(h, hop), layer(h, hop))


def test_backends_give_the_same_results(random_graph: Maker) -> None:
    hop = hop_named("random 0", random_graph, edges=True)
    h = torch.randn(hop.num_sources, IN, dtype=torch.float64)
    outs = [
        layer_with("gated", concat=True, edges=True, backend=backend)(h, hop)
        for backend in ("sparse", "reference")
    ]
    torch.testing.assert_close(*outs, rtol=1e-11, atol=1e-12)


def sparse_and_dense(nodes: int, width: int) -> tuple[SparseFeatures, Tensor]:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(nodes, width)) * (rng.random((nodes, width)) < 0.05)
    dense[3] = 0.0
    features = SparseFeatures.from_scipy(sp.csr_array(dense.astype(np.float32)))
    return features, torch.from_numpy(dense.astype(np.float32))


def test_sparse_and_dense_features_have_the_same_encoding() -> None:
    sparse, dense = sparse_and_dense(40, 60)
    encoder = FeatureEncoder(60, 8)
    grads = []
    for x in (sparse, dense):
        encoder.zero_grad()
        out = encoder(x)
        (out * torch.arange(8.0)).square().sum().backward()
        grads.append([out.detach()] + [p.grad.clone() for p in encoder.parameters()])  # type: ignore[union-attr]
    for from_sparse, from_dense in zip(*grads, strict=True):
        torch.testing.assert_close(from_sparse, from_dense, rtol=1e-4, atol=1e-4)


class LargestOutput(TorchDispatchMode):
    """Record the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in result if isinstance(result, tuple) else (result,):
            self.numel = max(self.numel, leaf.numel() if isinstance(leaf, Tensor) else 0)
        return result


def test_sparse_features_never_become_dense() -> None:
    nodes, width = 300, 400
    sparse, dense = sparse_and_dense(nodes, width)
    encoder = FeatureEncoder(width, 8)
    with LargestOutput() as largest:
        encoder(sparse[torch.arange(nodes)]).sum().backward()
    # The most are the stored values, or their 8 numbers a node or feature.
    assert largest.numel <= max(sparse.value.numel(), 8 * width) < nodes * width
    with LargestOutput() as largest:
        encoder(dense * 1.0).sum().backward()
    assert largest.numel == nodes * width


def test_a_label_that_is_not_observed_adds_exactly_zero() -> None:
    torch.manual_seed(0)
    table = LabelTable(5, 7)
    rows = table(torch.tensor([2, UNLABELED, 0, UNLABELED]))
    assert torch.equal(rows[[0, 2]], table.table.weight[[2, 0]])
    assert bool((rows[[1, 3]] == 0).all())
    rows.sum().backward()
    assert table.table.weight.grad is not None
    assert table.table.weight.grad.sum(1).tolist() == [7.0, 0.0, 7.0, 0.0, 0.0]


def test_the_label_table_is_initialized_from_a_standard_normal() -> None:
    torch.manual_seed(0)
    weight = LabelTable(40, 128).table.weight.detach()
    assert abs(float(weight.mean())) < 0.05
    assert float(weight.std()) == pytest.approx(1.0, abs=0.05)


def test_an_observed_row_of_zeros_adds_its_bias_and_a_hidden_row_nothing() -> None:
    torch.manual_seed(0)
    encoder = LabelEncoder(3, 8)
    nn.init.normal_(encoder.norm.bias)
    observed = torch.tensor([[0, 0, 0], [-1, -1, -1], [1, 0, 1]], dtype=torch.int8)
    rows = encoder(observed)
    torch.testing.assert_close(rows[0], encoder.norm(encoder.linear.bias))
    assert bool((rows[0] != 0).any())
    assert bool((rows[1] == 0).all())
    torch.testing.assert_close(rows[2], encoder.norm(encoder.linear(torch.tensor([1.0, 0.0, 1.0]))))


def test_a_missing_entry_of_an_observed_row_counts_as_zero() -> None:
    encoder = LabelEncoder(3, 8)
    given = torch.tensor([[1, UNLABELED, 0], [1, 0, 0], [UNLABELED, UNLABELED, 0], [0, 0, 0]])
    rows = encoder(given.to(torch.int8))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[2], rows[3])
