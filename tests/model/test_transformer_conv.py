"""TransformerConv equals PyG's layer in results and checkpoints, and needs less memory."""

import copy
import pickle
import runpy
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unimp.errors import GraphError, ModelError, UnimpError
from unimp.graph import edge_list as module
from unimp.graph.csr import group
from unimp.model.transformer_conv import TransformerConv

IN, IN_TARGET, WIDTH, EDGE_WIDTH = 6, 7, 5, 4
EDGES = torch.tensor([[0, 1, 2], [2, 2, 0]])
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def pyg() -> Any:
    """PyG's layer; importorskip hides the deprecation warnings of its import."""
    reason = "parity needs torch_geometric: pip install 'unimp[dev]'"
    return pytest.importorskip("torch_geometric.nn", reason=reason).TransformerConv


class Inputs:
    """The arguments of a call in double precision, and the leaves whose gradients are compared."""

    def __init__(self, edge_index: Tensor, *sizes: int, edges: bool, grad: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        widths = (IN, IN_TARGET) if len(sizes) == 2 else (IN,)
        shapes = list(zip(sizes, widths, strict=True))
        shapes += [(edge_index.shape[1], EDGE_WIDTH)] if edges else []
        self.leaves = [
            torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(grad)
            for shape in shapes
        ]
        self.x: Any = tuple(self.leaves[:2]) if len(sizes) == 2 else self.leaves[0]
        self.edge_index, self.edge_attr = edge_index, self.leaves[-1] if edges else None
        self.in_channels = widths if len(sizes) == 2 else IN

    @property
    def arguments(self) -> tuple[Any, Tensor, Tensor | None]:
        return self.x, self.edge_index, self.edge_attr


def edges_named(name: str) -> tuple[Any, ...]:
    """An unsorted edge list and the rows of x; nodes near the end have no edges."""
    generator = torch.Generator().manual_seed(1)
    if name == "no edges":
        return torch.empty(2, 0, dtype=torch.int64), 9
    if name == "more targets":
        return torch.randint(11, (2, 90), generator=generator) + torch.tensor([[0], [7]]), 13, 20
    if name == "more sources":
        return torch.randint(3, (2, 60), generator=generator) + torch.tensor([[22], [0]]), 28, 4
    edges = torch.randint(28, (2, 140), generator=generator)
    edges[1, ::4] = 3  # a hub
    edges[:, 100:120] = edges[:, :20]  # duplicates
    return edges, 30


def pair_of_layers(pyg: Any, in_channels: Any, **options: Any) -> tuple[TransformerConv, Any]:
    """Our layer and PyG's layer with the same random weights, including biases and gate."""
    torch.manual_seed(0)
    options = {"heads": 3} | options
    ours = TransformerConv(in_channels, WIDTH, **options).double()
    theirs = pyg(in_channels, WIDTH, **options).double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


def gradients(layer: nn.Module, inputs: Inputs) -> dict[str, Tensor | None]:
    """The output of a layer and the gradients of a function of it."""
    out = layer(*inputs.arguments)
    direction = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).view_as(out)
    named = dict(layer.named_parameters()) | {f"input {i}": t for i, t in enumerate(inputs.leaves)}
    grads = torch.autograd.grad((out * direction).sum(), list(named.values()), allow_unused=True)
    return {"out": out.detach()} | dict(zip(named, grads, strict=True))


def assert_same(ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", ["random", "more targets", "more sources", "no edges"])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("concat", [True, False], ids=["concat", "averaged"])
@pytest.mark.parametrize("residual", ["none", "simple", "gated"])
def test_results_and_gradients_equal_pygs(
    name: str, edges: bool, heads: int, concat: bool, residual: str, pyg: Any
) -> None:
    inputs = Inputs(*edges_named(name), edges=edges)
    for bias in (True, False):
        layers = pair_of_layers(
            pyg,
            inputs.in_channels,
            heads=heads,
            concat=concat,
            bias=bias,
            beta=residual == "gated",
            root_weight=residual != "none",
            edge_dim=EDGE_WIDTH if edges else None,
        )
        assert_same(*(gradients(layer, inputs) for layer in layers))


def test_the_flow_can_be_reversed_as_in_pyg(pyg: Any) -> None:
    for name, edges in product(("random", "more targets"), (False, True)):
        edge_index, *sizes = edges_named(name)
        inputs = Inputs(edge_index.flip(0), *sizes, edges=edges)
        layers = pair_of_layers(
            pyg,
            inputs.in_channels,
            flow="target_to_source",
            edge_dim=EDGE_WIDTH if edges else None,
        )
        assert_same(*(gradients(layer, inputs) for layer in layers))


def test_node_numbers_may_have_any_integer_type(pyg: Any) -> None:
    edge_index, *sizes = edges_named("random")
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        inputs = Inputs(edge_index, *sizes, edges=True)
        ours, _ = pair_of_layers(pyg, IN, edge_dim=EDGE_WIDTH)
        expected = ours(*inputs.arguments)
        assert torch.equal(ours(inputs.x, edge_index.to(dtype), inputs.edge_attr), expected)


def test_the_order_and_strides_of_edges_do_not_matter(pyg: Any) -> None:
    edge_index, *sizes = edges_named("random")
    inputs = Inputs(edge_index, *sizes, edges=True)
    ours, _ = pair_of_layers(pyg, IN, edge_dim=EDGE_WIDTH)
    expected = ours(*inputs.arguments)
    order = torch.argsort(edge_index[1], stable=True)
    assert inputs.edge_attr is not None
    assert torch.equal(ours(inputs.x, edge_index[:, order], inputs.edge_attr[order]), expected)
    strided = edge_index.t().contiguous().t()
    assert torch.equal(ours(inputs.x, strided, inputs.edge_attr), expected)


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("root_weight", [False, True])
@pytest.mark.parametrize("edge_dim", [None, EDGE_WIDTH])
def test_checkpoints_load_in_both_directions(
    beta: bool, root_weight: bool, edge_dim: int | None, pyg: Any
) -> None:
    for concat, bias, in_channels in product((True, False), (True, False), (IN, (IN, IN_TARGET))):
        options: dict[str, Any] = {
            "heads": 3,
            "concat": concat,
            "bias": bias,
            "beta": beta,
            "root_weight": root_weight,
            "edge_dim": edge_dim,
        }
        ours, theirs = (kind(in_channels, WIDTH, **options) for kind in (TransformerConv, pyg))
        assert list(ours.state_dict()) == list(theirs.state_dict())
        old = copy.deepcopy(theirs.state_dict())
        ours.load_state_dict(old, strict=True)
        for name, weight in ours.state_dict().items():
            assert torch.equal(weight, old[name])
        theirs.load_state_dict(TransformerConv(in_channels, WIDTH, **options).state_dict())


def test_the_same_seed_gives_the_initial_weights_of_pyg(pyg: Any) -> None:
    for options in ({}, {"heads": 3, "beta": True, "edge_dim": EDGE_WIDTH, "concat": False}):
        weights = []
        for kind in (TransformerConv, pyg):
            torch.manual_seed(7)
            layer = kind((IN, IN_TARGET), WIDTH, **options)
            weights.append(copy.deepcopy(layer.state_dict()))
            layer.reset_parameters()
            weights.append(layer.state_dict())
        for name in weights[0]:
            torch.testing.assert_close(weights[0][name], weights[2][name])
            torch.testing.assert_close(weights[1][name], weights[3][name])
            assert not torch.equal(weights[0][name], weights[1][name])


def test_the_repr_equals_pygs(pyg: Any) -> None:
    for in_channels in (IN, (IN, IN_TARGET), -1):
        ours, theirs = (kind(in_channels, WIDTH, heads=2) for kind in (TransformerConv, pyg))
        assert str(ours) == str(theirs)


@pytest.mark.parametrize("name", ["random", "more targets", "no edges"])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("asked", [True, False])
def test_attention_weights_equal_pygs_in_the_order_of_the_edges(
    name: str, edges: bool, asked: bool, pyg: Any
) -> None:
    inputs = Inputs(*edges_named(name), edges=edges)
    layers = pair_of_layers(
        pyg, inputs.in_channels, edge_dim=EDGE_WIDTH if edges else None, dropout=0.5
    )
    ours, theirs = (
        layer.eval()(*inputs.arguments, return_attention_weights=asked) for layer in layers
    )
    torch.testing.assert_close(ours[0], theirs[0])
    assert ours[1][0] is inputs.edge_index
    torch.testing.assert_close(ours[1][1], theirs[1][1].detach())
    assert not ours[1][1].requires_grad
    layers[0].train()
    _, (_, in_training) = layers[0](*inputs.arguments, return_attention_weights=asked)
    torch.testing.assert_close(in_training, ours[1][1])  # before dropout, as in PyG


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_matrix_is_the_transposed_adjacency_as_in_pyg(layout: str, pyg: Any) -> None:
    for name in ("random", "more targets"):
        edge_index, *sizes = edges_named(name)
        adj_t = torch.sparse_coo_tensor(
            edge_index.flip(0), torch.rand(edge_index.shape[1]), (sizes[-1], sizes[0])
        ).coalesce()
        if layout == "csr":
            adj_t = adj_t.to_sparse_csr()
        inputs = Inputs(torch.empty(2, adj_t._nnz()), *sizes, edges=True)
        inputs.edge_index = adj_t
        layers = pair_of_layers(pyg, inputs.in_channels, edge_dim=EDGE_WIDTH)
        assert_same(*(gradients(layer, inputs) for layer in layers))
        weights = [layer(*inputs.arguments, return_attention_weights=True)[1] for layer in layers]
        assert weights[0][0] is adj_t
        torch.testing.assert_close(weights[0][1], weights[1][1].detach())


def test_duplicate_entries_of_a_sparse_matrix_are_separate_edges() -> None:
    edges, nodes = edges_named("random")
    adj_t = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1]), (nodes, nodes))
    layer, x = TransformerConv(IN, WIDTH), torch.randn(nodes, IN)
    assert not adj_t.is_coalesced()
    assert torch.equal(layer(x, adj_t), layer(x, edges))


def test_the_edge_index_class_of_pyg_is_accepted(pyg: Any) -> None:
    edges, nodes = edges_named("random")
    wrapped = pytest.importorskip("torch_geometric").EdgeIndex(edges, sparse_size=(nodes, nodes))
    layer, x = TransformerConv(IN, WIDTH), torch.randn(nodes, IN)
    assert torch.equal(layer(x, wrapped), layer(x, edges))


def test_the_first_call_can_determine_widths(pyg: Any) -> None:
    for name, in_channels in (
        ("random", -1),
        ("more targets", (-1, -1)),
        ("more targets", (-1, 7)),
    ):
        inputs = Inputs(*edges_named(name), edges=True)
        known, theirs = pair_of_layers(pyg, inputs.in_channels, beta=True, edge_dim=EDGE_WIDTH)
        options: dict[str, Any] = {"heads": 3, "beta": True, "edge_dim": -1}
        lazy = TransformerConv(in_channels, WIDTH, **options).double()
        lazy(*inputs.arguments)
        shapes = {name: weight.shape for name, weight in lazy.state_dict().items()}
        assert shapes == {name: weight.shape for name, weight in known.state_dict().items()}
        assert 0 < float(lazy.lin_key.weight.detach().abs().max()) <= IN**-0.5
        # Old weights, before the first call and after.
        fresh = TransformerConv(in_channels, WIDTH, **options).double()
        for layer in (lazy, fresh):
            layer.load_state_dict(theirs.state_dict(), strict=True)
            assert_same(gradients(layer, inputs), gradients(theirs, inputs))


def test_dropout_is_only_used_in_training_and_keeps_the_mean() -> None:
    inputs = Inputs(*edges_named("random"), edges=True, grad=False)
    layer = TransformerConv(IN, WIDTH, heads=3, edge_dim=EDGE_WIDTH, dropout=0.3).double()
    torch.manual_seed(0)
    runs = torch.stack([layer(*inputs.arguments).detach() for _ in range(2000)])
    layer.eval()
    still = layer(*inputs.arguments).detach()
    assert torch.equal(still, layer(*inputs.arguments))
    assert not torch.equal(runs[0], runs[1])
    error = (runs.mean(0) - still) / (runs.std(0) / len(runs) ** 0.5 + 1e-9)
    assert float(error.abs().max()) < 5.0


class LargestFloat(TorchDispatchMode):
    """Record the size of the largest floating-point tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in result if isinstance(result, tuple | list) else (result,):
            if (
                isinstance(leaf, Tensor)
                and leaf.is_floating_point()
                and leaf.layout == torch.strided
            ):
                self.numel = max(self.numel, leaf.numel())
        return result


def test_no_tensor_of_messages_per_edge_is_built(pyg: Any) -> None:
    heads, width, count = 4, 16, 4000
    edge_index = torch.randint(50, (2, count))
    x, edge_attr = torch.randn(50, IN), torch.randn(count, EDGE_WIDTH, requires_grad=True)
    largest = []
    for kind in (TransformerConv, pyg):
        layer = kind(IN, width, heads=heads, beta=True, edge_dim=EDGE_WIDTH)
        with LargestFloat() as seen:
            layer(x, edge_index, edge_attr).sum().backward()
        largest.append(seen.numel)
    assert largest[0] <= count * max(heads, EDGE_WIDTH)
    assert largest[1] == count * heads * width


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the sizes of the edge lists that are sorted by target."""
    done: list[int] = []
    group: Callable[..., Any] = module.group

    def counted(keys: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
        done.append(keys.numel())
        return group(keys, num_groups)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "group", counted)
    return done


def test_an_edge_list_is_sorted_once_for_all_calls_and_layers(sorts: list[int]) -> None:
    edges, nodes = edges_named("random")
    layers = [TransformerConv(IN, IN), TransformerConv(IN, IN, edge_dim=EDGE_WIDTH)]
    for _ in range(3):
        x = layers[0](torch.randn(nodes, IN), edges)
        layers[1](x, edges, torch.randn(edges.shape[1], EDGE_WIDTH)).sum().backward()
    assert sorts == [edges.shape[1]]


def test_the_transpose_for_the_backward_pass_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edges, nodes = edges_named("random")
    found = []

    def counted(source: Tensor, num_sources: int) -> tuple[Tensor, Tensor]:
        found.append(source)
        return group(source, num_sources)

    monkeypatch.setattr("unimp.graph.hop.group", counted)
    layer = TransformerConv(IN, WIDTH, edge_dim=EDGE_WIDTH)
    for _ in range(3):
        layer(
            torch.randn(nodes, IN), edges, torch.randn(edges.shape[1], EDGE_WIDTH)
        ).sum().backward()
    assert len(found) == 1


def test_edges_changed_in_place_are_noticed() -> None:
    edges, nodes = edges_named("random")
    layer, x = TransformerConv(IN, WIDTH, heads=2), torch.randn(nodes, IN)
    before = layer(x, edges)
    edges[0, 5] = (edges[0, 5] + 1) % 28
    changed = layer(x, edges)
    assert not torch.equal(changed, before)
    assert torch.equal(changed, layer(x, edges.clone()))


def test_invalid_edges_are_refused() -> None:
    with pytest.raises(GraphError, match="source -1, but x has 4 source rows"):
        TransformerConv(IN, WIDTH)(torch.randn(4, IN), EDGES - 1)


def test_other_edges_nodes_or_edge_features_are_not_confused_with_the_last() -> None:
    torch.manual_seed(0)
    layer = TransformerConv(IN, WIDTH, edge_dim=EDGE_WIDTH)
    remembered = TransformerConv(IN, WIDTH, edge_dim=EDGE_WIDTH)
    remembered.load_state_dict(layer.state_dict())
    edges, nodes = edges_named("random")
    x, edge_attr = torch.randn(nodes + 5, IN), torch.randn(edges.shape[1], EDGE_WIDTH)
    layer(x[:nodes], edges, edge_attr)
    more = layer(x, edges, edge_attr)
    assert len(more) == nodes + 5
    torch.testing.assert_close(more[:nodes], layer(x[:nodes], edges, edge_attr))
    other = layer(x, edges, edge_attr.flip(0))
    assert not torch.equal(other, more)
    assert torch.equal(other, layer(x, edges.clone(), edge_attr.flip(0)))
    # Lists that are created and freed in turn often have the same address.
    for seed in range(20):
        fresh = torch.randint(28, (2, 50), generator=torch.Generator().manual_seed(seed))
        attr = torch.randn(50, EDGE_WIDTH)
        assert torch.equal(layer(x, fresh, attr), remembered(x, fresh.clone(), attr))
        del fresh


def test_copies_and_pickles_of_a_used_layer_do_not_contain_the_graph() -> None:
    edges, nodes = edges_named("random")
    x = torch.randn(nodes, IN)
    layer = TransformerConv(IN, WIDTH)
    fresh = len(pickle.dumps(layer))
    expected = layer(x, edges)
    assert len(pickle.dumps(layer)) == fresh
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x, edges), expected)
    assert torch.equal(copy.deepcopy(layer)(x, edges), expected)


def test_inference_mode_before_training_does_not_break_training() -> None:
    edges, nodes = edges_named("random")
    layer, x = TransformerConv(IN, WIDTH, edge_dim=2), torch.randn(nodes, IN)
    edge_attr = torch.randn(edges.shape[1], 2, requires_grad=True)
    with torch.inference_mode():
        expected = layer(x, edges, edge_attr).clone()
        assert torch.equal(
            layer(x, edges.clone(), edge_attr), expected
        )  # created in inference mode
    out = layer(x, edges, edge_attr)
    out.sum().backward()
    assert torch.equal(out.detach(), expected)
    assert edge_attr.grad is not None


@pytest.mark.parametrize("how", ["autocast", "bfloat16"])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
def test_half_precision_is_close_to_single_precision(edges: bool, how: str) -> None:
    inputs = Inputs(*edges_named("random"), edges=edges)
    torch.manual_seed(0)
    layer = TransformerConv(IN, WIDTH, heads=2, beta=True, edge_dim=EDGE_WIDTH if edges else None)
    expected = copy.deepcopy(layer).double()(*inputs.arguments)
    dtype = torch.bfloat16 if how == "bfloat16" else torch.float32
    layer.to(dtype)
    x, edge_attr = (None if t is None else t.to(dtype) for t in (inputs.x, inputs.edge_attr))
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        out = layer(x, inputs.edge_index, edge_attr)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert bool(torch.isfinite(parameter.grad).all())


def test_half_precision_returns_attention_weights() -> None:
    edges, nodes = edges_named("random")
    layer = TransformerConv(IN, WIDTH, heads=2).bfloat16()
    x = torch.randn(nodes, IN, dtype=torch.bfloat16)
    _, (_, weights) = layer(x, edges, return_attention_weights=True)
    total = torch.zeros(nodes, 2).index_add(0, edges[1], weights.float())
    torch.testing.assert_close(total[edges[1]], torch.ones(len(weights), 2), rtol=0.05, atol=0.0)


def test_it_works_for_each_relation_of_a_heterogeneous_model(pyg: Any) -> None:
    hetero = pytest.importorskip("torch_geometric.nn").HeteroConv
    sizes = {"author": (8, IN), "paper": (12, IN_TARGET)}
    x = {kind: torch.randn(*size) for kind, size in sizes.items()}
    edges = {
        ("author", "writes", "paper"): torch.stack(
            (torch.randint(8, (20,)), torch.randint(12, (20,)))
        ),
        ("paper", "written by", "author"): torch.randint(8, (2, 15)),
        ("paper", "cites", "paper"): torch.randint(12, (2, 30)),
    }
    outs = []
    for kind in (TransformerConv, pyg):
        torch.manual_seed(0)
        model = hetero({relation: kind((-1, -1), WIDTH, heads=2) for relation in edges})
        outs.append(model(x, edges))
    for kind in x:
        torch.testing.assert_close(outs[0][kind], outs[1][kind])


def test_it_works_without_pyg() -> None:
    program = """
import sys
sys.modules["torch_geometric"] = None
import torch
from unimp.model.transformer_conv import TransformerConv
out = TransformerConv(-1, 4, heads=2)(torch.randn(3, 5), torch.tensor([[0, 1], [2, 2]]))
print(tuple(out.shape))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["(3,", "8)"]


def test_the_example_runs_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = runpy.run_path(str(EXAMPLES / "pyg_dropin.py"))["main"](epochs=20)
    assert accuracy > 0.5
    assert "held-out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggr": "mean"}, r"aggr='mean' is not supported.*pass aggr='add'"),
        ({"aggr": ["add", "max"]}, r"aggr=\['add', 'max'\] is not supported"),
        ({"aggr_kwargs": {"p": 2}}, "aggr_kwargs=.* is not supported"),
        ({"node_dim": -2}, "node_dim=-2 is not supported.*pass node_dim=0"),
        ({"decomposed_layers": 2}, "decomposed_layers=2 is not supported"),
        ({"flow": "sideways"}, "flow 'sideways'.*'source_to_target'"),
        ({"dropout": 1.0}, "dropout.*not 1.0"),
    ],
)
def test_unsupported_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        TransformerConv(IN, WIDTH, **options)


def test_the_defaults_of_pygs_base_class_are_accepted(pyg: Any) -> None:
    for aggr in ("add", "sum"):
        TransformerConv(
            IN, WIDTH, aggr=aggr, aggr_kwargs=None, flow="source_to_target", decomposed_layers=1
        )
    with pytest.raises(TypeError, match="unexpected keyword"):
        TransformerConv(IN, WIDTH, headz=2)  # type: ignore[call-arg]


def test_edge_features_must_match_edge_dim() -> None:
    x = torch.randn(4, IN)
    with pytest.raises(GraphError, match="build it with edge_dim=2"):
        TransformerConv(IN, WIDTH)(x, EDGES, torch.randn(3, 2))
    layer = TransformerConv(IN, WIDTH, edge_dim=2)
    with pytest.raises(GraphError, match="edge_attr is missing"):
        layer(x, EDGES)
    for shape in ((3,), (2, 2), (3, 1), (3, 1, 2)):
        with pytest.raises(UnimpError, match=r"needs \(3, 2\)"):
            layer(x, EDGES, torch.randn(shape))
