"""bf16: only the layers compute in half precision, and accuracy stays nearly the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.inference.logits import predict_logits
from unimp.model.unimp import UniMP
from unimp.ops import native
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task
from unimp.training import step
from unimp.training.precision import (
    autocast,
    choose_precision,
    explain_choice,
    inference_precision,
    matmuls_in,
)

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
REGIMES = {
    "full": ["batch.regime=full"],
    "partition": ["batch.regime=partition", "batch.parts=2", "inference.regime=partition"],
    "neighbors": ["batch.regime=neighbors", "batch.fanout=[5]", "inference.chunk_edges=700"],
}
SETTINGS = [
    "model.width=16",
    "model.layers=2",
    "train.epochs=15",
    "train.eval_from=10",
    "train.lr=0.01",
]


@pytest.fixture(autouse=True)
def has_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a CPU does not have the instructions, torch computes the same without them."""
    monkeypatch.setattr(native, "multiplies_bf16", lambda: True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task that needs only a few epochs."""
    path = tmp_path_factory.mktemp("task") / "easy.npz"
    save_npz(some_task(num_nodes=400, num_edges=1600, num_features=16, feature_signal=1.5), path)
    return path


def run_of(
    path: Path,
    *settings: str,
    device: str = "cpu",
    out: Path | None = None,
    progress: bool | None = None,
) -> Run:
    named = [f"task.name={path}", f"train.device={device}"]
    recipe = Recipe(name="easy").with_settings([*named, *SETTINGS, *settings])
    return run(recipe, out=out, progress=progress)


def logits_of(done: Run) -> Tensor:
    """The logits with train labels as inputs; `predict` returns known labels as they are."""
    return done.logits(done.observed_labels(reveal="train"))


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 90, "num_edges": 300, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, **options})


def model_for(task: Task, **options: Any) -> UniMP:
    torch.manual_seed(0)
    return UniMP(task.sizes, **{"layers": 3, "width": 8, "heads": 2, **options})


def assert_near(got: Tensor, exact: Tensor) -> None:
    """Within a few of bf16's steps, 2⁻⁸ of the largest."""
    assert float((got - exact).abs().max()) < 8 * 2**-8 * float(exact.abs().max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("gate", ["none", "last"])
def test_a_run_in_bf16_scores_as_one_in_fp32(
    path: Path, device: str, regime: str, gate: str
) -> None:
    settings = [*REGIMES[regime], f"model.gate={gate}"]
    full, half = (
        run_of(path, *settings, f"train.precision={precision}", device=device)
        for precision in ("fp32", "bf16")
    )
    assert not half.metrics["failed"]
    assert half.model is not None
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    logits = logits_of(half)
    assert logits.dtype == torch.float32
    one, other = (done.metrics["scores"]["train"]["test"] for done in (full, half))
    assert one == pytest.approx(other, abs=0.06)
    assert one > 0.6  # three classes
    assert not torch.equal(logits_of(full), logits_of(half))  # training differed
    # On CPU, a run predicts in single precision, whatever it was trained in. On GPU, single
    # precision gives nearly the same, but not the same.
    recipe = half.recipe.with_settings(["train.precision=fp32"])
    single = Run(recipe, 0, half.task, half.model, {}, half.device)
    exact = single.logits(half.observed_labels(reveal="train"))
    assert torch.equal(logits, exact) == (device == "cpu")
    assert_near(logits, exact)


def test_a_run_in_bf16_predicts_the_same_once_loaded(path: Path, tmp_path: Path) -> None:
    done = run_of(path, "train.precision=bf16", out=tmp_path / "run")
    again = load_run(tmp_path / "run", device="cpu")
    assert again.recipe.train.precision == "bf16"
    assert torch.equal(logits_of(again), logits_of(done))
    assert again.evaluate() == done.metrics["scores"]["train"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_edges", [7, 100])
@pytest.mark.parametrize(
    ("task_options", "model_options"),
    [
        ({}, {}),
        ({}, {"head": "linear", "gate": "all", "gate_bias": False}),
        ({}, {"residual": "none", "feature_encoder": True}),
        ({"multilabel_tasks": 4}, {"edge_encoder": "shared", "head": "linear"}),
    ],
)
def test_chunks_in_bf16_are_near_the_whole_in_bf16_and_in_fp32(
    device: str, chunk_edges: int, task_options: dict[str, Any], model_options: dict[str, Any]
) -> None:
    task = some_task(**task_options)
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task, **model_options).to(device)
    exact = predict_logits(model, task.graph, observed)
    whole = predict_logits(model, task.graph, observed, precision="bf16")
    chunks = predict_logits(model, task.graph, observed, precision="bf16", chunk_edges=chunk_edges)
    assert whole.dtype == chunks.dtype == torch.float32
    assert not torch.equal(whole, exact)
    assert_near(whole, exact)
    assert_near(chunks, whole)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_and_the_gradients_are_in_single_precision(
    path: Path, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    real = step.masked_label_loss

    def watched(logits: Tensor, labels: Tensor, hidden: Tensor) -> Tensor:
        seen.append(logits.dtype)
        assert not torch.is_autocast_enabled("cpu")
        return real(logits, labels, hidden)

    monkeypatch.setattr(step, "masked_label_loss", watched)
    done = run_of(path, f"train.precision={precision}", "train.epochs=2", "train.eval_from=2")
    assert seen == [torch.float32] * 2
    assert done.model is not None
    assert {p.grad.dtype for p in done.model.parameters() if p.grad is not None} == {torch.float32}


def test_fp32_is_fp32_for_every_caller() -> None:
    task = some_task()
    observed = reveal_only(task.split.train, task.labels)
    model = model_for(task)
    alone = predict_logits(model, task.graph, observed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(predict_logits(model, task.graph, observed), alone)
        with autocast("cpu", "fp32"):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with autocast("cpu", "bf16"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_tf32_is_enabled_only_inside_the_block() -> None:
    matmul = torch.backends.cuda.matmul
    assert not matmul.allow_tf32
    with matmuls_in("tf32"):
        assert matmul.allow_tf32
        with matmuls_in("fp32"):
            assert not matmul.allow_tf32
        assert matmul.allow_tf32
    assert not matmul.allow_tf32


def test_a_tf32_run_on_cpu_is_the_fp32_run(path: Path) -> None:
    exact, other = (run_of(path, f"train.precision={p}") for p in ("fp32", "tf32"))
    assert torch.equal(logits_of(exact), logits_of(other))


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_a_cpu_without_bf16_instructions_trains_in_fp32_and_says_so(
    path: Path, precision: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "multiplies_bf16", lambda: False)
    exact, other = (
        run_of(path, f"train.precision={p}", progress=True) for p in ("fp32", precision)
    )
    assert torch.equal(logits_of(exact), logits_of(other))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "train.precision" in line]
    assert f"train.precision={precision}" in line
    assert "fp32" in line


def test_auto_is_bf16_on_a_cpu_with_bf16_instructions_and_says_so(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, given = (run_of(path, f"train.precision={p}", progress=True) for p in ("auto", "bf16"))
    assert torch.equal(logits_of(chosen), logits_of(given))
    lines = [line for line in capsys.readouterr().err.splitlines() if "train.precision" in line]
    assert len(lines) == 1  # of `auto` alone
    assert "bf16" in lines[0]


def test_only_auto_auto_cpu_and_bf16_depend_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for has in (True, False):
        monkeypatch.setattr(native, "multiplies_bf16", lambda has=has: has)
        for precision in ("fp32", "tf32"):
            assert choose_precision(precision, "cpu") == precision  # type: ignore[arg-type]
            assert explain_choice(precision, "cpu") is None  # type: ignore[arg-type]
        for precision in ("auto", "auto-cpu", "bf16"):
            wanted = "bf16" if has else "fp32"
            assert choose_precision(precision, "cpu") == wanted  # type: ignore[arg-type]
            assert inference_precision(precision, "cpu") == "fp32"  # type: ignore[arg-type]
    assert choose_precision("bf16", "cuda") == inference_precision("bf16", "cuda") == "bf16"


def test_auto_cpu_is_auto_on_a_cpu_and_fp32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain_choice("auto-cpu", "cpu") is not None
    assert choose_precision("auto-cpu", "cuda") == inference_precision("auto-cpu", "cuda") == "fp32"
    assert explain_choice("auto-cpu", "cuda") is None
    monkeypatch.setattr(native, "multiplies_bf16", lambda: False)
    assert explain_choice("auto-cpu", "cpu") is None
