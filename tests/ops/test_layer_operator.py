"""torch.compile treats TransformerConv as one operator with the same results."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import unimp
from unimp.model.transformer_conv import TransformerConv
from unimp.ops import layer_operator, native
from unimp.ops.absorbed import pays
from unimp.ops.dropout import drawn_per_node

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="the native core is not built"),
    # Read by the compiler.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

NODES, EDGES, EDGE_WIDTH = 300, 2000, 3
LAYERS = {
    "gate": {"in_channels": 16, "out_channels": 8, "heads": 2, "beta": True},
    "mean of heads": {"in_channels": 16, "out_channels": 8, "heads": 2, "concat": False},
    "reversed": {"in_channels": 16, "out_channels": 8, "flow": "target_to_source"},
    "edge features": {
        "in_channels": 16, "out_channels": 8, "heads": 4, "beta": True, "edge_dim": EDGE_WIDTH,
    },
    "edge features, mean": {
        "in_channels": 16, "out_channels": 8, "heads": 2, "concat": False, "edge_dim": EDGE_WIDTH,
    },
    "absorbed": {"in_channels": 64, "out_channels": 256, "heads": 2, "beta": True},
    "absorbed, mean": {"in_channels": 64, "out_channels": 256, "heads": 2, "concat": False},
}  # fmt: skip


class Model(nn.Module):
    """A layer between two steps that the compiler can trace."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.LazyLinear(3)

    def forward(self, x: Any, edges: Any, edge_attr: Tensor | None = None) -> Tensor:
        return self.last(torch.relu(self.layer(x, edges, edge_attr)))  # type: ignore[no-any-return]


class Doubled(nn.Linear):
    """A linear map that is not exactly `nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


def edge_list(seed: int = 0) -> Tensor:
    return torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(seed))


def models(name: str = "gate", **options: Any) -> tuple[Model, Model, Tensor | None]:
    """A model, its copy, and edge features if it needs them."""
    torch.manual_seed(0)
    given = {**LAYERS[name], **options}
    model = Model(TransformerConv(**given))
    width = given["out_channels"] * (given.get("heads", 1) if given.get("concat", True) else 1)
    model.last(torch.zeros(1, width))
    attr = torch.randn(EDGES, EDGE_WIDTH) if "edge_dim" in given else None
    return model, copy.deepcopy(model), attr


def compiled(model: nn.Module, *, whole: bool = True) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager", fullgraph=whole)


def outcome(run: Any, model: nn.Module, x: Tensor, *given: Any) -> list[Tensor | None]:
    """The output and all gradients of a call with one seed."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    torch.manual_seed(1)
    out = run(x, *given)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]


def assert_same(found: list[Tensor | None], expected: list[Tensor | None], **given: float) -> None:
    tolerance = {"rtol": 1e-4, "atol": 1e-4, **given}
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **tolerance)


def test_the_cases_absorb_weights_as_their_names_say() -> None:
    for name, given in LAYERS.items():
        sizes = (NODES, NODES, EDGES, given["in_channels"], given["out_channels"])
        assert pays(*sizes) == name.startswith("absorbed")


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_model_compiles_as_one_graph_with_the_same_results(name: str, device: str) -> None:
    model, plain, attr = models(name, dropout=0.25)
    for one in (model, plain):
        one.to(device).layer.replay = False
    run = compiled(model)
    for turn in range(3):
        x = torch.randn(NODES, LAYERS[name]["in_channels"], device=device)
        edges = edge_list(turn).to(device)
        given = (x, edges) if attr is None else (x, edges, attr.to(device))
        assert_same(outcome(run, model, *given), outcome(plain, plain, *given))
    model.eval(), plain.eval()
    with torch.no_grad():
        torch.testing.assert_close(run(*given), plain(*given))


@pytest.mark.parametrize("trains", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_operator_declares_its_outputs_and_gradients(name: str, trains: bool) -> None:
    model, _, attr = models(name)
    layer = model.layer.double()
    assert isinstance(layer, TransformerConv)
    weights = layer._weights()
    x = torch.randn(NODES, LAYERS[name]["in_channels"], dtype=torch.float64)
    arguments = (
        x.requires_grad_(trains),
        edge_list(),
        None if attr is None else attr.double(),
        [w.detach().requires_grad_(trains) for w in weights[:8]],
        weights.edge,
        weights.gate,
        layer.heads,
        layer.concat,
        0.25,
        torch.tensor(3),
        layer.flow,
        torch.float64,
        trains,
    )
    if not trains:
        arguments = tuple(a.detach() if isinstance(a, Tensor) else a for a in arguments)
    torch.library.opcheck(torch.ops.unimp.conv.default, arguments)


@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("name", ["gate", "edge features", "absorbed"])
def test_a_compiled_layer_uses_the_precision_of_autocast(name: str, inside: bool) -> None:
    model, plain, attr = models(name)

    class Cast(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.model(*given)

    one, other = (Cast(m) for m in (model, plain))
    run = compiled(one if inside else model)
    x = torch.randn(NODES, LAYERS[name]["in_channels"])
    given = (x, edge_list()) if attr is None else (x, edge_list(), attr)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        found = outcome(run, model, *given)
    expected = outcome(other, plain, *given)
    assert found[0] is not None
    assert found[0].dtype == torch.bfloat16
    for got, wanted in zip(found, expected, strict=True):
        assert got is not None
        assert wanted is not None
        assert (got.float() - wanted.float()).norm() <= 0.02 * wanted.float().norm()


def test_a_changed_edge_list_changes_the_result() -> None:
    model, plain, _ = models()
    run, x, edges = compiled(model), torch.randn(NODES, 16), edge_list()
    first = outcome(run, model, x, edges)
    edges.copy_(edge_list(5))
    second = outcome(run, model, x, edges)
    assert_same(second, outcome(plain, plain, x, edges))
    assert not torch.allclose(first[0], second[0])  # type: ignore[arg-type]


def test_another_size_gives_the_same_results() -> None:
    model, plain, _ = models()
    run = compiled(model)
    for nodes in (NODES, 120, 77, *range(20, 120, 9)):  # more than torch would compile one by one
        x, edges = torch.randn(nodes, 16), edge_list() % nodes
        assert_same(outcome(run, model, x, edges), outcome(plain, plain, x, edges))


@pytest.mark.parametrize("name", ["gate", "absorbed"])
def test_the_backward_operator_declares_its_outputs_if_rows_are_not_contiguous(name: str) -> None:
    model, _, _ = models(name)
    layer = model.layer
    assert isinstance(layer, TransformerConv)
    weights = layer._weights()
    linear = [w.detach() for w in weights[:8]]
    gate = None if weights.gate is None else weights.gate.detach()
    x = torch.randn(LAYERS[name]["in_channels"], NODES).t()
    given = (x, edge_list(), None, linear, None, gate, layer.heads, layer.concat, 0.0)
    options = (torch.tensor(3), layer.flow, torch.float32)
    out, *stored = torch.ops.unimp.conv(*given, *options, True)
    arguments = (torch.ones_like(out), *given, *options, stored, True)
    torch.library.opcheck(
        torch.ops.unimp.conv_backward.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("types", [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_an_input_of_another_type_than_the_weights_is_refused(types: tuple[Any, Any]) -> None:
    model, plain, _ = models()
    x = torch.randn(NODES, 16, dtype=types[0])
    layers = [one.layer.to(types[1]) for one in (model, plain)]
    for run in (layers[1], compiled(layers[0], whole=False)):
        with pytest.raises(RuntimeError, match="same dtype"):
            run(x, edge_list())


def test_a_compiled_layer_draws_the_same_dropout_per_node() -> None:
    model, plain, _ = models(dropout=0.5)
    run, x = compiled(model, whole=False), torch.randn(NODES, 16)
    run(x, edge_list())  # compiled without it
    results = []
    for one in (run, plain):
        for seed in (1, 2):
            torch.manual_seed(seed)
            with drawn_per_node(torch.arange(NODES), 3):
                results.append(one(x, edge_list()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_a_compiled_layer_raises_the_same_error_for_wrong_edges() -> None:
    model, _, _ = models()
    with pytest.raises(unimp.UnimpError, match="edge_index contains the"):
        compiled(model)(torch.randn(NODES, 16), edge_list() + 1)


@pytest.mark.filterwarnings("ignore:Using `torch.compile.*global hooks")
@pytest.mark.parametrize(
    "case",
    [
        "hook", "global hook", "subclass", "no root weight", "no bias", "sparse", "int32", "pair",
        "gradient of edge features", "weights",
    ],
)  # fmt: skip
def test_calls_that_the_operator_does_not_support_run_without_it(
    case: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Their results equal those without the compiler, and the operator is not called."""

    def refuse(*given: Any) -> None:
        raise AssertionError("the operator was called")

    monkeypatch.setattr(layer_operator, "layer_forward", refuse)
    name = "edge features" if case.startswith("gradient") else "gate"
    options = {"no root weight": {"root_weight": False}, "no bias": {"bias": False}}
    model, plain, attr = models(name, **options.get(case, {}))
    x, edges = torch.randn(NODES, 16), edge_list()
    given: list[Any] = [x, edges]
    if case == "hook":
        for one in (model, plain):
            one.layer.lin_key.register_forward_hook(lambda *_: 2.0 * _[2])  # type: ignore[union-attr, operator]
    if case == "global hook":
        hook = register_module_forward_hook(
            lambda module, _, out: 2.0 * out if type(module) is nn.Linear else None
        )
        request.addfinalizer(hook.remove)
    if case == "subclass":
        for one in (model, plain):
            one.layer.lin_key.__class__ = Doubled
    if case == "int32":
        given[1] = edges.int()
    if case == "sparse":
        values = torch.ones(EDGES)
        given[1] = torch.sparse_coo_tensor(edges.flip(0), values, (NODES, NODES)).coalesce()
    if case == "pair":
        given[0] = (x, x[:100])
        given[1] = torch.stack((edges[0], edges[1] % 100))
    if attr is not None:
        given.append(attr.requires_grad_())
    if case == "weights":
        found = compiled(model.layer, whole=False)(x, edges, None, True)
        expected = plain.layer(x, edges, None, True)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1][1], expected[1][1])
        return
    torch.testing.assert_close(compiled(model, whole=False)(*given), plain(*given))


def test_a_compiled_layer_is_called_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass is not computed again in the backward pass."""
    calls = []
    for name in ("layer_forward", "layer_backward"):
        function = getattr(layer_operator, name)

        def counted(*given: Any, name: str = name, function: Any = function) -> Any:
            calls.append(name)
            return function(*given)

        monkeypatch.setattr(layer_operator, name, counted)
    model, _, _ = models()
    outcome(compiled(model), model, torch.randn(NODES, 16), edge_list())
    assert calls == ["layer_forward", "layer_backward"]
