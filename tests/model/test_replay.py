"""Calls of TransformerConv that are replayed give the same results as calls that are not.

Without a GPU, a recorder that runs the recorded functions again takes the place of CUDA graphs: it
works on the same static memory, but cannot show that a GPU would.
"""

import copy
import gc
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from unimp.model.transformer_conv import _RECORDINGS, TransformerConv
from unimp.ops import native, replay
from unimp.ops.recording import WARMUP
from unimp.ops.replay import Recording

NODES, EDGES, IN, WIDTH, HEADS, EDGE_WIDTH = 30, 140, 6, 8, 2, 4
CALLS = WARMUP + 3
"""Enough calls for several of them to be replayed."""


class RunAgain:
    """A recorder that runs a function again and copies the results to where the first ones are."""

    def run(self, function: Callable[[], object]) -> None:
        function()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        first = function()

        def again() -> None:
            with torch.no_grad():
                pairs = zip(tensors_in(first), tensors_in(function()), strict=True)
                for old, new in pairs:
                    old.copy_(new)

        return first, again


def tensors_in(result: Any) -> list[Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    return [one for one in results if one is not None]


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        if not native.available():
            pytest.skip("the native core is not built")

        def can_replay(*given: Any) -> bool:
            return replay.are_plain(*given) and not replay.is_observed()

        monkeypatch.setattr(replay, "can_replay", can_replay)
        monkeypatch.setattr(replay, "recorder_for", lambda *given: RunAgain())
    return str(request.param)


class Replays:
    """Counts replayed passes."""

    forward = backward = 0


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    seen = Replays()
    forward, backward = Recording.forward, Recording.backward

    def counted_forward(recording: Recording) -> Tensor:
        seen.forward += 1
        return forward(recording)

    def counted_backward(recording: Recording, grad: Tensor) -> Any:
        seen.backward += 1
        return backward(recording, grad)

    monkeypatch.setattr(Recording, "forward", counted_forward)
    monkeypatch.setattr(Recording, "backward", counted_backward)
    return seen


def edge_list(device: str, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(NODES - 2, (2, EDGES), generator=generator).to(device)


def rows(device: str, seed: int, *, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NODES, IN, generator=generator).to(device).requires_grad_(grad)


def features(device: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(EDGES, EDGE_WIDTH, generator=generator).to(device)


def two_layers(device: str, **options: Any) -> tuple[TransformerConv, TransformerConv]:
    """A layer that is replayed and one with the same weights that is not."""
    torch.manual_seed(0)
    layer = TransformerConv(IN, WIDTH, heads=HEADS, **options).to(device)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    other = copy.deepcopy(layer)
    other.replay = False
    return layer, other


def outcome(layer: nn.Module, x: Tensor, *rest: Any, seed: int = 0) -> list[Tensor]:
    """The output of a call and all gradients of a function of it."""
    torch.manual_seed(seed)
    out = layer(x, *rest)
    scale = torch.linspace(-1.0, 1.0, out.numel(), device=out.device, dtype=out.dtype)
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * scale.view_as(out)).sum(), wanted)]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [{}, {"beta": True}, {"concat": False, "beta": True}, {"dropout": 0.4}],
    ids=["simple", "gated", "averaged", "dropout"],
)
@pytest.mark.parametrize("with_features", [False, True], ids=["plain", "edge features"])
def test_outputs_and_gradients_are_the_same_for_changing_inputs(
    device: str, replays: Replays, options: dict[str, Any], with_features: bool
) -> None:
    layers = two_layers(device, edge_dim=EDGE_WIDTH if with_features else None, **options)
    edges = edge_list(device)
    for turn in range(CALLS):
        rest = (edges, features(device, turn)) if with_features else (edges,)
        x = rows(device, turn)
        found, expected = (outcome(layer, x, *rest, seed=turn) for layer in layers)
        assert_same(found, expected)
    assert replays.forward == replays.backward == CALLS - WARMUP


def test_dropout_is_drawn_again_in_every_call(device: str, replays: Replays) -> None:
    layer, _ = two_layers(device, dropout=0.5)
    edges, x = edge_list(device), rows(device, 0)
    outs = [layer(x, edges).detach() for _ in range(CALLS)]
    assert replays.forward == CALLS - WARMUP
    assert not any(torch.equal(outs[-1], out) for out in outs[:-1])


def test_a_result_does_not_change_with_later_calls(device: str, replays: Replays) -> None:
    layer, _ = two_layers(device)
    edges = edge_list(device)
    kept = []
    for turn in range(CALLS):
        x = rows(device, turn)
        out = layer(x, edges)
        grads = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        kept.append([(t, t.detach().clone()) for t in (out, *grads)])
    assert replays.forward == CALLS - WARMUP
    for now, before in (pair for results in kept for pair in results):
        assert torch.equal(now, before)


@pytest.mark.parametrize("with_features", [False, True], ids=["plain", "edge features"])
def test_inputs_at_the_same_addresses_are_read_in_place(
    device: str, replays: Replays, with_features: bool
) -> None:
    layer, other = two_layers(device, edge_dim=EDGE_WIDTH if with_features else None)
    edges, x = edge_list(device), rows(device, 0)
    rest = (edges[:, edges[1].argsort(stable=True)],)
    rest = (*rest, features(device, 0)) if with_features else rest
    for turn in range(2 * CALLS):
        for given in (x, *rest[1:]):
            with torch.no_grad():
                given.mul_(-0.9)
        assert_same(*(outcome(one, x, *rest, seed=turn) for one in (layer, other)))
    assert replays.backward == 2 * CALLS - WARMUP
    (slot,) = _RECORDINGS[layer]._slots
    assert slot.recording.h is None
    assert slot.recording.edge_attr is None
    elsewhere = rows(device, 1)
    for given in (elsewhere, x, elsewhere):
        assert_same(*(outcome(one, given, *rest) for one in (layer, other)))
    assert replays.backward == 2 * CALLS - WARMUP + 3
    (slot,) = _RECORDINGS[layer]._slots
    assert slot.recording.h is not None


def test_inputs_that_are_read_in_place_must_not_change_before_the_backward_pass(
    device: str, replays: Replays
) -> None:
    layers = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for layer in layers:
        for _ in range(CALLS):
            outcome(layer, x, edges)
        loss = layer(x, edges).square().sum()
        with torch.no_grad():
            x.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert replays.forward == CALLS - WARMUP + 1


def test_inputs_that_are_moved_before_the_backward_pass(device: str, replays: Replays) -> None:
    layers = two_layers(device)
    edges = edge_list(device)
    found = []
    for layer in layers:
        x = rows(device, 0)
        for _ in range(CALLS):
            outcome(layer, x, edges)
        loss = layer(x, edges).square().sum()
        x.data = x.detach().clone()
        found.append(list(torch.autograd.grad(loss, [x, *layer.parameters()])))
    assert_same(*found)
    assert replays.forward == replays.backward + 1


def test_weights_may_change_before_the_backward_pass(device: str, replays: Replays) -> None:
    """The gradients are those of the weights that the forward pass used."""
    layers = two_layers(device, beta=True)
    edges, x = edge_list(device), rows(device, 0)
    found = []
    for layer in layers:
        for _ in range(CALLS):
            outcome(layer, x, edges)
        loss = layer(x, edges).square().sum()
        with torch.no_grad():
            for weight in layer.parameters():
                weight.add_(1.0)
        found.append(list(torch.autograd.grad(loss, [x, *layer.parameters()])))
    assert_same(*found)
    assert replays.backward == CALLS - WARMUP + 1


def test_changed_weights_are_refused_if_a_forward_pass_is_computed_again(
    device: str, replays: Replays
) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    loss = layer(x, edges).square().sum()
    loss.backward(retain_graph=True)
    layer(x, edges)
    with torch.no_grad():
        layer.lin_key.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("how", ["in place", "data", "another list"])
def test_changed_edges_are_noticed(device: str, replays: Replays, how: str) -> None:
    layer, other = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    if how == "in place":
        edges[0, :50] = (edges[0, :50] + 1) % NODES
    elif how == "data":
        edges.data[0, :50] = (edges[0, :50] + 1) % NODES
    else:
        edges = edge_list(device, seed=2)
    for _ in range(CALLS):
        assert_same(outcome(layer, x, edges), outcome(other, x, edges.clone()))
    assert replays.backward == 2 * (CALLS - WARMUP)


def test_two_forward_passes_before_one_backward_pass(device: str, replays: Replays) -> None:
    """Also if the second one uses the result of the first, as in a model with shared weights."""
    torch.manual_seed(0)
    layer = TransformerConv(IN, IN, heads=1, beta=True, dropout=0.2).to(device)
    other = copy.deepcopy(layer)
    other.replay = False
    edges = edge_list(device)

    class Twice(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            once = self.layer(x, edges)
            return once + self.layer(torch.relu(once), edges)  # type: ignore[no-any-return]

    for turn in range(3 * CALLS):
        x = rows(device, turn)
        assert_same(*(outcome(Twice(one), x, seed=turn) for one in (layer, other)))
    assert replays.backward > CALLS
    assert len(_RECORDINGS[layer]) == 2


def test_a_second_backward_pass_after_another_call(device: str, replays: Replays) -> None:
    layer, other = two_layers(device, beta=True, dropout=0.3, edge_dim=EDGE_WIDTH)
    edges, attr, x = edge_list(device), features(device, 0), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges, attr)
    found = []
    for one in (layer, other):
        torch.manual_seed(5)
        weights = list(one.parameters())
        loss = one(x, edges, attr).square().sum()
        grads = torch.autograd.grad(loss, weights, retain_graph=True)
        assert_same(list(torch.autograd.grad(loss, weights, retain_graph=True)), list(grads))
        one(rows(device, 1), edges, attr)
        again = torch.autograd.grad(loss, weights)
        assert_same(list(again), list(grads))
        found.append(list(grads))
    assert_same(*found)


@pytest.mark.parametrize("moves", [False, True])
def test_a_second_backward_pass_needs_a_retained_graph(
    device: str, replays: Replays, moves: bool
) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for turn in range(CALLS):
        x = rows(device, turn) if moves else x
        outcome(layer, x, edges)
    (slot,) = _RECORDINGS[layer]._slots
    assert (slot.places is None) == moves
    total = layer(x, edges).sum()  # a sum saves nothing, so only the layer can raise the error
    total.backward()
    assert replays.backward == CALLS - WARMUP + 1
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_replaced_parameters_are_noticed(device: str, replays: Replays) -> None:
    layer, other = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    fresh = {name: weight + 1.0 for name, weight in layer.state_dict().items()}
    layer.load_state_dict(fresh, assign=True)
    other.load_state_dict(fresh)
    for _ in range(CALLS):
        assert_same(outcome(layer, x, edges), outcome(other, x, edges))
    for one in (layer, other):
        one.lin_key.weight.data = one.lin_key.weight.data * 2.0
    for _ in range(CALLS):
        assert_same(outcome(layer, x, edges), outcome(other, x, edges))
    for one in (layer, other):
        one.double()
    x = x.detach().double().requires_grad_()
    for _ in range(CALLS):
        assert_same(outcome(layer, x, edges), outcome(other, x, edges))
    assert replays.backward == 4 * (CALLS - WARMUP)


def test_training_and_evaluation_in_turn(device: str, replays: Replays) -> None:
    layer, other = two_layers(device, dropout=0.5)
    edges, x = edge_list(device), rows(device, 0)
    for turn in range(CALLS):
        for one in (layer, other):
            one.train()
        assert_same(*(outcome(one, x, edges, seed=turn) for one in (layer, other)))
        for one in (layer, other):
            one.eval()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                out, expected = layer(x, edges), other(x, edges)
            assert not out.requires_grad
            assert_same([out], [expected])
    assert replays.backward == CALLS - WARMUP
    assert replays.forward == CALLS - WARMUP + 2 * CALLS - WARMUP


def test_a_forward_pass_without_gradients_between_two_passes(device: str, replays: Replays) -> None:
    layer, other = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    found = []
    for one in (layer, other):
        for _ in range(CALLS):
            out = one(x, edges)
            with torch.no_grad():
                one(rows(device, 1), edges)
            grads = torch.autograd.grad(out.square().sum(), list(one.parameters()))
        found.append(list(grads))
    assert_same(*found)
    assert replays.backward == CALLS - WARMUP


def test_autocast(device: str, replays: Replays) -> None:
    layers = two_layers(device, beta=True, edge_dim=EDGE_WIDTH)
    edges, attr = edge_list(device), features(device, 0)
    for turn in range(2 * CALLS):
        x = rows(device, turn)
        mixed = torch.autocast(device, torch.bfloat16) if turn % 2 else nullcontext()
        with mixed:
            found, expected = (outcome(layer, x, edges, attr) for layer in layers)
        assert found[0].dtype == (torch.bfloat16 if turn % 2 else torch.float32)
        assert_same(found, expected, 2e-2 if turn % 2 else 1e-4)
    assert replays.backward == 2 * (CALLS - WARMUP)


def test_autocast_of_inputs_from_inference_mode(device: str, replays: Replays) -> None:
    """Autograd cannot save them, but it can save their copies in another precision."""
    layer, other = two_layers(device, edge_dim=EDGE_WIDTH)
    edges = edge_list(device)
    with torch.inference_mode():
        attr, x = features(device, 0), rows(device, 0, grad=False)
    for given in ((x, edges, attr), (rows(device, 0), edges, attr), (x, edges, attr.clone())):
        for _ in range(CALLS):
            with torch.autocast(device, torch.bfloat16):
                assert_same(*(outcome(one, *given) for one in (layer, other)), 2e-2)
    assert replays.forward == 0
    with torch.no_grad():
        for _ in range(CALLS):
            layer(x, edges, attr)
    assert replays.forward == CALLS - WARMUP


def test_a_recording_for_inference_has_no_memory_for_gradients(
    device: str, replays: Replays
) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    with torch.no_grad():
        for _ in range(CALLS):
            layer(x, edges)
    (slot,) = _RECORDINGS[layer]._slots
    assert not slot.recording.trains
    assert not hasattr(slot.recording, "grad")


def test_inputs_or_weights_without_gradients(device: str, replays: Replays) -> None:
    layer, other = two_layers(device)
    edges = edge_list(device)
    for frozen in (False, True):
        for one in (layer, other):
            one.lin_key.requires_grad_(not frozen)
        for turn in range(CALLS):
            x = rows(device, turn, grad=frozen)
            assert_same(*(outcome(one, x, edges) for one in (layer, other)))
    assert replays.backward == 2 * (CALLS - WARMUP)


def test_an_optimizer_sees_the_same_losses(device: str, replays: Replays) -> None:
    edges, x = edge_list(device), rows(device, 0, grad=False)
    goal = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(3)).to(device)
    losses: list[list[float]] = []
    for replayed in (True, False):
        torch.manual_seed(0)
        first = TransformerConv(IN, WIDTH, heads=HEADS, beta=True, dropout=0.1).to(device)
        second = TransformerConv(HEADS * WIDTH, WIDTH, heads=1).to(device)
        first.replay = second.replay = replayed
        weights = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.Adam(weights, lr=0.01)
        losses.append([])
        for _ in range(30):
            out = second(torch.relu(first(x, edges)), edges)
            loss = nn.functional.mse_loss(out, goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert replays.backward == 2 * (30 - WARMUP)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < 0.9 * losses[0][0]


def test_gradients_accumulate_over_calls(device: str, replays: Replays) -> None:
    layer, other = two_layers(device)
    edges = edge_list(device)
    for turn in range(CALLS):
        for one in (layer, other):
            one(rows(device, turn), edges).square().sum().backward()
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        assert_same([one.grad], [two.grad], 1e-3)  # type: ignore[list-item]


def test_copies_and_pickles_do_not_contain_recordings(device: str, replays: Replays) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    size, names = len(pickle.dumps(layer)), list(layer.state_dict())
    for _ in range(CALLS):
        expected = outcome(layer, x, edges)
    assert len(_RECORDINGS[layer]) == 1
    assert len(pickle.dumps(layer)) == size
    assert list(layer.state_dict()) == names
    for copied in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert copied not in _RECORDINGS
        assert_same(outcome(copied, x, edges), expected)


def test_it_can_be_turned_off(device: str, replays: Replays) -> None:
    _, layer = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    assert replays.forward == 0


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_EDGES", EDGES - 1), ("MOST_COPIED", 4 * 4 * NODES * IN)]
)
def test_large_graphs_are_not_recorded(
    device: str, replays: Replays, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(replay, limit, most)
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    assert replays.forward == 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_calls(device: str, replays: Replays, reentrant: bool) -> None:
    layers = two_layers(device, dropout=0.3)
    edges = edge_list(device)
    for turn in range(CALLS):
        x = rows(device, turn)

        def run(layer: nn.Module, x: Tensor = x, turn: int = turn) -> list[Tensor]:
            torch.manual_seed(turn)
            layer.zero_grad()
            x.grad = None
            checkpoint(layer, x, edges, use_reentrant=reentrant).square().sum().backward()
            assert x.grad is not None
            return [x.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]

        assert_same(*map(run, layers))


def test_linear_maps_with_hooks_or_of_another_kind_are_called(
    device: str, replays: Replays
) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        expected = outcome(layer, x, edges)[0]
    seen: list[Tensor] = []
    handle = layer.lin_key.register_forward_hook(lambda _module, _given, out: seen.append(out))
    assert_same([layer(x, edges).detach()], [expected])
    assert len(seen) == 1
    handle.remove()
    layer.lin_key = nn.Sequential(layer.lin_key, nn.Identity())  # type: ignore[assignment]
    layer.lin_key[1].register_forward_hook(lambda _module, _given, out: out * 0.0)  # type: ignore[index]
    assert not torch.allclose(layer(x, edges), expected)


def test_modes_see_every_operation(device: str, replays: Replays) -> None:
    layer, _ = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(CALLS):
        layer(x, edges)
    before = replays.forward
    with FlopCounterMode(display=False) as counter:
        layer(x, edges)
    assert counter.get_total_flops() > 0
    assert replays.forward == before
    with torch.device(device):  # a default device observes nothing
        layer(x, edges)
    assert replays.forward == before + 1


def test_a_failed_recording_is_not_tried_again(
    device: str, replays: Replays, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(replay, "recorder_for", fail)
    layers = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for _ in range(3 * CALLS):
        assert_same(*(outcome(layer, x, edges) for layer in layers))
    assert caplog.text.count("no room") == 1
    assert replays.forward == 0


def test_weights_that_are_given_for_one_call(device: str, replays: Replays) -> None:
    layer, other = two_layers(device)
    edges, x = edge_list(device), rows(device, 0)
    for turn in range(CALLS):
        outcome(layer, x, edges)
        scaled = {name: weight * (turn + 2.0) for name, weight in layer.named_parameters()}
        given = (x, edges)
        found = torch.func.functional_call(layer, scaled, given)
        expected = torch.func.functional_call(other, scaled, given)
        assert_same([found.detach()], [expected.detach()])
    assert replays.backward == CALLS - WARMUP


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # read by the compiler
def test_a_compiled_model_runs_the_layer_as_it_is(
    device: str, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the compiler neither splits the layer nor prevents replays."""
    if device == "cpu":
        monkeypatch.setattr(TransformerConv, "_can_trace", lambda *given: False)

    class Model(nn.Module):
        def __init__(self, layer: TransformerConv) -> None:
            super().__init__()
            self.layer, self.last = layer, nn.Linear(HEADS * WIDTH, 3).to(device)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.last(torch.relu(self.layer(2.0 * x, edges)))  # type: ignore[no-any-return]

    model = Model(two_layers(device, beta=True)[0])
    plain = copy.deepcopy(model)
    plain.layer.replay = False
    compiled = torch.compile(model, backend="aot_eager")
    edges = edge_list(device)
    for turn in range(CALLS):
        x = rows(device, turn)
        assert_same(outcome(compiled, x, edges), outcome(plain, x, edges))
    assert replays.backward == CALLS - WARMUP


@GPU
def test_another_stream_has_its_own_recording(replays: Replays) -> None:
    layer, other = two_layers("cuda")
    edges, x = edge_list("cuda"), rows("cuda", 0)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(CALLS):
        for stream in streams:
            with torch.cuda.stream(stream):
                assert_same(*(outcome(one, x, edges) for one in (layer, other)))
            torch.cuda.synchronize()
    assert replays.backward == 2 * (CALLS - WARMUP)
    assert len(_RECORDINGS[layer]) == 2


@GPU
# torch itself keeps the outputs of its warm-up, which ran on another stream, while it records.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_a_step_that_is_recorded_as_a_whole_contains_the_layer(replays: Replays) -> None:
    layer, other = two_layers("cuda")
    edges, x = edge_list("cuda"), rows("cuda", 0)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    before = replays.forward

    class OnEdges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, edges)  # type: ignore[no-any-return]

    whole = torch.cuda.make_graphed_callables(OnEdges(), (rows("cuda", 1),))
    during = replays.forward
    for turn in range(3):
        x = rows("cuda", turn)
        torch.testing.assert_close(whole(x), other(x, edges), rtol=1e-4, atol=1e-4)
    assert replays.forward == during
    assert during >= before


@GPU
def test_a_recording_does_not_keep_its_inputs(replays: Replays) -> None:
    layer, _ = two_layers("cuda")
    edges = edge_list("cuda")
    x = torch.randn(NODES, IN, device="cuda", requires_grad=True)
    for _ in range(CALLS):
        outcome(layer, x, edges)
    (slot,) = _RECORDINGS[layer]._slots
    assert slot.places is not None
    torch.cuda.synchronize()
    before, size = torch.cuda.memory_allocated(), x.untyped_storage().nbytes()
    del x
    assert torch.cuda.memory_allocated() <= before - size


@GPU
def test_memory_is_freed_with_the_layer() -> None:
    edges = edge_list("cuda")
    held = []
    for _ in range(3):  # the first one also allocates what stays, such as workspaces
        layer, _ = two_layers("cuda")
        for turn in range(CALLS):
            outcome(layer, rows("cuda", turn), edges)
        assert len(_RECORDINGS[layer]) == 1
        del layer, _
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert held[2] == held[1]
