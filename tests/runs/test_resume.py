"""An interrupted run resumes and ends in the same bytes; folders with other runs are refused."""

import errno
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor, nn

from unimp.cli import main
from unimp.config.recipe import Recipe
from unimp.config.run_files import CHECKPOINT, LOCK, MANIFEST, TRACKERS
from unimp.data.synthetic import synthetic_task
from unimp.errors import ModelError, RunError
from unimp.model.masked_labels import MaskedLabels
from unimp.runs import preparation
from unimp.runs.experiment import run
from unimp.runs.folder.lock import in_use, locked
from unimp.runs.folder.resume import held_folder, interrupted_folder
from unimp.runs.loading import load_run
from unimp.runs.preparation import tables_of
from unimp.tasks.task import Sizes, Task
from unimp.training.checkpoint import load_checkpoint, read_about, save_checkpoint
from unimp.training.loop import Epoch

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.03",
        "model.width=8",
        "model.layers=2",
        "train.epochs=8",
        "train.eval_every=2",
        "train.lr=0.01",
        "train.device=cpu",
        "train.checkpoint_every=1e-9",
        "batch.parts=3",
        "batch.batch_size=8",
        "batch.fanout=[3]",
    ]
)
LABEL_INPUTS = [
    "model.propagated_labels=true",
    "mask.rate=drawn",
    "mask.wrong_labels=0.2",
    "mask.feature_drop=0.3",
]
SAME = ("model.safetensors", "predictions.parquet")


class Killed(BaseException):
    """Represents the end of the process: nothing after it is executed."""


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """As in a terminal: a shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def killed_at(write: int, patch: pytest.MonkeyPatch) -> None:
    """End the run right after this number of checkpoints was written."""
    left = write

    def save_then_die(*arguments: Any) -> None:
        nonlocal left
        save_checkpoint(*arguments)
        left -= 1
        if left == 0:
            raise Killed

    patch.setattr("unimp.training.checkpoint.save_checkpoint", save_then_die)
    patch.setattr("unimp.training.checkpoint.SHARE", 0)


def interrupted(write: int, folder: Path, recipe: Recipe | Task, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        killed_at(write, patch)
        with pytest.raises(Killed):
            run(recipe, out=folder, **options)
    assert (folder / CHECKPOINT).exists()


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def losses(folder: Path) -> list[tuple[int, float, Any]]:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["loss"], line.get("val")) for line in lines]


@pytest.mark.parametrize(
    ("settings", "writes"),
    [
        (["batch.regime=full"], (1, 2, 7, 16)),
        (["batch.regime=full", "batch.prune=false", "train.patience=2"], (5,)),
        (["batch.regime=full", "model.name=gcn-lpa"], (6,)),
        (["batch.regime=full", "train.samples=2", "train.consistency=1"], (6,)),
        (["batch.regime=partition", "model.name=grand", "train.consistency=1"], (7,)),
        (["batch.regime=full", "model.name=grand", "model.norm=batch", "train.samples=2"], (6,)),
        (["batch.regime=partition", "mask.redraw=step"], (3, 18)),
        (["batch.regime=partition", "mask.redraw=run", "inference.regime=partition"], (9,)),
        (["batch.regime=neighbors", "mask.redraw=step"], (3, 11)),
        (["batch.regime=neighbors", "model.attention_dropout=0.2"], (14,)),
        (["batch.regime=full", "train.ema=0.9", "train.schedule=cosine"], (1, 7, 16)),
        (["batch.regime=partition", "train.ema=0.9", "model.norm=batch"], (3, 18)),
        (["batch.regime=neighbors", "model.norm=batch", "train.schedule=cosine"], (11,)),
        (["batch.regime=full", "model.edge_dropout=0.3", "train.select=loss"], (6,)),
        (["batch.regime=partition", "model.edge_dropout=0.3", "model.name=sage"], (9,)),
        (["batch.regime=neighbors", "train.select=loss", "train.patience=2"], (4,)),
        (["batch.regime=full", "train.precision=bf16", "model.attention_dropout=0.2"], (6,)),
        (["batch.regime=partition", "train.precision=auto"], (9,)),
        (LABEL_INPUTS, (7,)),
        (["batch.regime=partition", "mask.redraw=step", *LABEL_INPUTS], (11,)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_an_interrupted_run_ends_in_the_same_bytes(
    settings: list[str], writes: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "SMALL_GRAPH", 0)  # so that full batches are pruned
    recipe = RECIPE.with_settings(settings)
    whole = run(recipe, out=tmp_path / "whole")
    for write in writes:
        folder = tmp_path / f"killed-{write}"
        interrupted(write, folder, recipe)
        resumed = run(recipe, out=folder)
        assert bytes_of(folder) == bytes_of(tmp_path / "whole")
        assert losses(folder) == losses(tmp_path / "whole")
        for key in ("best_epoch", "epochs", "stopped", "scores"):
            assert resumed.metrics[key] == whole.metrics[key]
        assert {p.name for p in folder.iterdir()} == {
            p.name for p in (tmp_path / "whole").iterdir()
        }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("write", [2, 12])  # before a step is recorded, and while it is replayed
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_on_a_gpu_an_interrupted_run_ends_nearly_the_same(
    regime: str, write: int, tmp_path: Path
) -> None:
    recipe = RECIPE.with_settings(
        [f"batch.regime={regime}", "train.device=cuda", "model.dropout=0", "model.input_dropout=0"]
    )
    whole = run(recipe, out=tmp_path / "whole")
    interrupted(write, tmp_path / "killed", recipe)
    resumed = run(recipe, out=tmp_path / "killed")
    expected = [loss for _, loss, _ in losses(tmp_path / "whole")]
    found = [loss for _, loss, _ in losses(tmp_path / "killed")]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert resumed.metrics["best_epoch"] == whole.metrics["best_epoch"]


def test_a_run_interrupted_again_and_again_ends_in_the_same_bytes(tmp_path: Path) -> None:
    recipe = RECIPE.with_settings(["batch.regime=neighbors"])
    run(recipe, out=tmp_path / "whole")
    for _ in range(5):
        interrupted(4, tmp_path / "run", recipe)
    run(recipe, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


class MeanOfNeighbors(nn.Module):
    """A user's module with dropout, and with running means, which are not parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(self.norm(x), 0.5, self.training)
        return self.out(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))


def own_model(sizes: Sizes) -> MaskedLabels:
    return MaskedLabels(MeanOfNeighbors(sizes.classes), sizes, width=16)


def test_a_run_of_the_users_own_model_and_task_resumes(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=200, num_edges=600, num_classes=4, num_features=8)
    settings = ["train.epochs=5", "train.device=cpu", "train.checkpoint_every=1e-9"]
    run(task, model=own_model, settings=settings, out=tmp_path / "whole")
    interrupted(5, tmp_path / "run", task, model=own_model, settings=settings)
    with pytest.raises(RunError, match="model is MaskedLabels there and None here"):
        run(task, settings=settings, out=tmp_path / "run")
    resumed = run(task, model=own_model, settings=settings, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    found = run(task, model=own_model, settings=settings, out=tmp_path / "run")
    assert torch.equal(found.predict(), resumed.predict())


def test_the_users_own_model_with_other_shapes_is_refused_with_the_shapes(tmp_path: Path) -> None:
    def wider(sizes: Sizes) -> MaskedLabels:
        module = MeanOfNeighbors(sizes.classes)
        module.norm, module.out = nn.BatchNorm1d(24), nn.Linear(24, sizes.classes)
        return MaskedLabels(module, sizes, width=24)

    task = synthetic_task(num_nodes=90, num_edges=200, num_classes=3, num_features=8)
    settings = ["train.epochs=3", "train.device=cpu"]
    interrupted(1, tmp_path / "run", task, model=own_model, settings=settings)
    before = bytes_in(tmp_path / "run")
    with pytest.raises(RunError, match=r"shape.*16.*24"):
        run(task, model=wider, settings=settings, out=tmp_path / "run")
    assert bytes_in(tmp_path / "run") == before
    run(task, model=own_model, settings=settings, out=tmp_path / "run")


def test_an_unfinished_run_of_the_users_own_task_resumes_in_a_moved_folder(
    tmp_path: Path,
) -> None:
    def task(seed: int) -> Task:
        return synthetic_task(num_nodes=90, num_edges=200, num_classes=3, seed=seed)

    settings = ["train.epochs=4", "train.device=cpu", "train.checkpoint_every=1e-9"]
    run(task(0), settings=settings, out=tmp_path / "whole")
    interrupted(5, tmp_path / "run", task(0), settings=settings)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(RunError, match="the data has changed"):
        run(task(1), settings=settings, out=tmp_path / "moved")
    run(task(0), settings=settings, out=tmp_path / "moved")
    assert bytes_of(tmp_path / "moved") == bytes_of(tmp_path / "whole")
    assert load_run(tmp_path / "moved").task.data_hash() == task(0).data_hash()


def test_an_unfinished_run_of_tables_resumes_in_a_moved_folder(tmp_path: Path) -> None:
    rows = [f"{n},{n % 5 / 2},{'ab'[n % 2] if n < 30 else ''}" for n in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,x,label", *rows]) + "\n")
    edges = [f"{n},{(n * 7 + 2) % 40}" for n in range(40)]
    (tmp_path / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    recipe = RECIPE.with_settings(
        {
            "task.name": "tables",
            "task.scale": 1.0,
            "tables.nodes": str(tmp_path / "nodes.csv"),
            "tables.edges": str(tmp_path / "edges.csv"),
            "tables.id": "id",
            "tables.source": "source",
            "tables.target": "target",
            "tables.label": "label",
            "tables.features": {"x": "numeric"},
        }
    )
    run(recipe, out=tmp_path / "whole")
    interrupted(3, tmp_path / "run", recipe)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.MonkeyPatch.context() as patch:

        def slow(*arguments: Any, **options: Any) -> Task:
            time.sleep(1.1)
            return tables_of(*arguments, **options)

        patch.setattr("unimp.runs.context.tables_of", slow)
        done = run(recipe, out=tmp_path / "moved")
    assert bytes_of(tmp_path / "moved") == bytes_of(tmp_path / "whole")
    assert done.metrics["seconds"] > 1.1  # reading the tables is part of the time


def test_every_epoch_is_reported_once_before_or_after_the_interruption(tmp_path: Path) -> None:
    first: list[Epoch] = []
    second: list[Epoch] = []
    interrupted(9, tmp_path / "run", RECIPE, on_epoch=first.append)
    run(RECIPE, out=tmp_path / "run", on_epoch=second.append)
    numbers = [epoch.epoch for epoch in first + second]
    assert numbers == list(range(1, 9))
    assert first
    assert second


def test_the_time_before_the_interruption_is_part_of_the_total(tmp_path: Path) -> None:
    interrupted(9, tmp_path / "run", RECIPE)
    path = tmp_path / "run" / CHECKPOINT
    state = load_checkpoint(path)
    made_with = read_about(path)["made_with"]
    state.position.spent = 1000.0
    save_checkpoint(path, state, made_with)
    done = run(RECIPE, out=tmp_path / "run")
    assert done.metrics["seconds"] > 1000


def test_a_time_limit_includes_the_time_before_the_interruption(tmp_path: Path) -> None:
    recipe = RECIPE.with_settings(["train.time_limit=900"])
    interrupted(9, tmp_path / "run", recipe)
    path = tmp_path / "run" / CHECKPOINT
    state = load_checkpoint(path)
    state.position.spent = 1000.0
    save_checkpoint(path, state, read_about(path)["made_with"])
    done = run(recipe, out=tmp_path / "run")
    assert "time limit" in done.metrics["stopped"]
    assert done.metrics["epochs"] < 8


def test_a_run_resumes_with_another_time_limit(tmp_path: Path) -> None:
    limited = RECIPE.with_settings(["train.time_limit=900"])
    run(RECIPE, out=tmp_path / "whole")
    interrupted(9, tmp_path / "run", limited)
    done = run(RECIPE, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    assert done.recipe.train.time_limit == 0
    with pytest.raises(RunError, match=r"train\.time_limit is 0\.0 there and 900\.0 here"):
        run(limited, out=tmp_path / "run")


def test_a_run_is_not_trained_for_more_epochs_than_it_was_started_for(tmp_path: Path) -> None:
    longer = RECIPE.with_settings(["train.epochs=9"])
    interrupted(9, tmp_path / "run", RECIPE)
    with pytest.raises(RunError, match=r"unfinished run .*train\.epochs is 8 there and 9 here"):
        run(longer, out=tmp_path / "run")
    run(RECIPE, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"a finished run .*train\.epochs is 8 there and 9 here"):
        run(longer, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "seed", "threads", "named"),
    [
        (["train.lr=0.5"], 0, None, r"train\.lr is 0\.01 there and 0\.5 here"),
        ([], 4, None, "seed is 0 there and 4 here"),
        ([], 0, 5, "1 threads there and 5 here: set OMP_NUM_THREADS=1"),
    ],
)
def test_a_checkpoint_with_other_settings_is_refused_with_the_difference(
    settings: list[str],
    seed: int,
    threads: int | None,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    interrupted(3, tmp_path / "run", RECIPE)
    before = bytes_in(tmp_path / "run")
    if threads:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    with pytest.raises(RunError, match=f"an unfinished run .*{named}"):
        run(RECIPE.with_settings(settings), seed=seed, out=tmp_path / "run")
    assert bytes_in(tmp_path / "run") == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    def task(seed: int) -> Any:
        return synthetic_task(num_nodes=90, num_edges=200, num_classes=3, seed=seed)

    settings = ["train.epochs=3", "train.device=cpu"]
    interrupted(1, tmp_path / "run", task(0), settings=settings)
    with pytest.raises(RunError, match="the data has changed"):
        run(task(1), settings=settings, out=tmp_path / "run")
    run(task(0), settings=settings, out=tmp_path / "run")
    with pytest.raises(RunError, match="a finished run on other data"):
        run(task(1), settings=settings, out=tmp_path / "run")


def test_a_run_resumes_with_another_interval_between_checkpoints(tmp_path: Path) -> None:
    interrupted(3, tmp_path / "run", RECIPE)
    run(RECIPE.with_settings(["train.checkpoint_every=60"]), out=tmp_path / "run")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: b"",
        lambda data: b"\xff\x00" * 99,
        lambda data: data[:-200] + bytes([data[-200] ^ 1]) + data[-199:],
    ],
    ids=["truncated", "empty", "noise", "one bit"],
)
def test_a_damaged_checkpoint_is_refused_with_its_name_and_the_fix(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    interrupted(3, tmp_path / "run", RECIPE)
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match=r"(?i)remove it") as error:
        run(RECIPE, out=tmp_path / "run")
    assert str(path) in str(error.value)
    path.unlink()
    run(RECIPE, out=tmp_path / "run")


def test_half_written_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    interrupted(3, tmp_path / "run", RECIPE)
    (tmp_path / "run" / ".checkpoint.safetensors.x1y2_abc").write_bytes(b"half")
    (tmp_path / "run" / "mine.txt").write_text("of the user")
    run(RECIPE, out=tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert "mine.txt" in names
    assert not any(name.startswith(".") for name in names)


def test_a_finished_run_is_loaded_and_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(RECIPE, seed=2, out=tmp_path / "run")

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("unimp.runs.experiment.fit_recipe", refuse)
    again = run(RECIPE, seed=2, out=tmp_path / "run")
    assert torch.equal(again.predict(), made.predict())
    assert again.metrics == load_run(tmp_path / "run").metrics


def test_leftovers_of_a_process_killed_just_after_the_manifest_are_removed(
    tmp_path: Path,
) -> None:
    run(RECIPE, out=tmp_path / "run")
    whole = {path.name for path in (tmp_path / "run").iterdir()}
    (tmp_path / "run" / CHECKPOINT).write_bytes(b"left")
    (tmp_path / "run" / LOCK).write_bytes(b"12345")
    run(RECIPE, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == whole


def test_a_full_disk_is_reported_with_the_file_and_the_run_resumes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["task.scale=0.03", "model.width=8", "train.epochs=4", "train.device=cpu"]
    folder = tmp_path / "run"
    given = [f"--set={setting}" for setting in settings]
    monkeypatch.setattr(sys, "argv", ["unimp", "train", "synthetic", *given, "--out", str(folder)])
    make = tempfile.mkstemp

    def full(*, dir: Path, prefix: str) -> Any:
        if prefix == ".predictions.parquet.":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return make(dir=dir, prefix=prefix)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", full)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1
    printed = " ".join(capsys.readouterr().err.split())
    assert "epoch 1" in printed  # where the same command resumes
    assert str(folder / "predictions.parquet") in printed
    assert os.strerror(errno.ENOSPC) in printed
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert load_run(folder).metrics["epochs"] == 4


# One process per folder


def test_a_run_in_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        with pytest.raises(RunError, match="in use") as error:
            run(RECIPE, out=tmp_path / "run")
        assert str(tmp_path / "run") in str(error.value)
    run(RECIPE, out=tmp_path / "run")


# Signals


def stopping(at: int, number: int) -> Callable[[Epoch], None]:
    """Send this process a signal after an epoch."""

    def on_epoch(epoch: Epoch) -> None:
        if epoch.epoch == at:
            os.kill(os.getpid(), number)

    return on_epoch


def test_ctrl_c_stores_a_checkpoint_and_is_raised_afterwards(tmp_path: Path) -> None:
    recipe = RECIPE.with_settings(["train.checkpoint_every=0"])
    run(recipe, out=tmp_path / "whole")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, out=tmp_path / "run", on_epoch=stopping(5, signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before
    state = load_checkpoint(tmp_path / "run" / CHECKPOINT)
    assert [epoch.epoch for epoch in state.history] == [1, 2, 3, 4, 5]
    assert not in_use(tmp_path / "run")
    run(recipe, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def test_a_run_without_a_folder_does_not_delay_signals() -> None:
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        stopping(2, signal.SIGINT)(epoch)

    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, on_epoch=on_epoch)
    assert len(epochs) == 2


def test_a_run_in_another_thread_trains_without_signal_handlers(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def train() -> None:
        try:
            run(RECIPE, out=tmp_path / "run")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert failures == []
    assert (tmp_path / "run" / MANIFEST).exists()


@pytest.mark.parametrize(
    ("names", "ours"), [(["wandb"], True), ([TRACKERS, LOCK], True), (["notes.txt"], False)]
)
def test_a_folder_that_contains_only_files_of_trackers_is_used_again(
    names: list[str], ours: bool, tmp_path: Path
) -> None:
    folder = tmp_path / RECIPE.name
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    assert interrupted_folder(tmp_path, RECIPE, [0]) == (folder if ours else None)


def test_the_newest_interrupted_folder_of_the_same_settings_is_found(tmp_path: Path) -> None:
    for number in ("", "-2", "-3"):
        interrupted(1, tmp_path / f"small{number}", RECIPE)
    assert interrupted_folder(tmp_path, RECIPE, [0]) == tmp_path / "small-3"
    run(RECIPE, out=tmp_path / "small-3")
    assert interrupted_folder(tmp_path, RECIPE, [0]) == tmp_path / "small-2"
    assert interrupted_folder(tmp_path, RECIPE, [1]) is None
    assert interrupted_folder(tmp_path, RECIPE.with_settings(["train.lr=0.5"]), [0]) is None
    assert interrupted_folder(tmp_path / "nowhere", RECIPE, [0]) is None


def test_several_seeds_resume_with_the_seed_that_was_interrupted(tmp_path: Path) -> None:
    run(RECIPE, seeds=[0, 1], out=tmp_path / "whole")
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:

        def killed(done: object) -> None:
            killed_at(3, patch)

        with pytest.raises(Killed):
            run(RECIPE, seeds=[0, 1], out=tmp_path / "small", on_run=killed)
    assert (tmp_path / "small" / "seed-0" / MANIFEST).exists()
    assert (tmp_path / "small" / "seed-1" / CHECKPOINT).exists()
    assert interrupted_folder(tmp_path, RECIPE, [0, 1]) == tmp_path / "small"
    assert interrupted_folder(tmp_path, RECIPE, [1, 2]) is None
    run(
        RECIPE,
        seeds=[0, 1],
        out=tmp_path / "small",
        on_epoch=lambda epoch: seen.append(epoch.epoch),
    )
    assert seen[-1] == 8
    assert len(seen) < 8  # seed 0 was loaded, and seed 1 resumed
    for seed in ("seed-0", "seed-1"):
        assert bytes_of(tmp_path / "small" / seed) == bytes_of(tmp_path / "whole" / seed)
    assert interrupted_folder(tmp_path, RECIPE, [0, 1]) is None


@pytest.mark.parametrize("name", ["recipe.toml", "report.html", "model.safetensors"])
def test_a_file_of_the_user_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=rf"contains {re.escape(name)}.*--out"):
        run(RECIPE, out=tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("beside", "content", "name"),
    [
        (".lock", "", "task.npz"),
        (".lock", "", "transforms.json"),
        ("history.jsonl", "", "model.safetensors"),
        ("history.jsonl", "", "report.html"),
        ("history.jsonl", '{"epoch": 1, "loss": 1.0, "seconds": 0.1}\n', "report.html"),
        ("history.jsonl", '{"epoch": 1, "loss": 1.0, "seconds": 0.1}\n', "predictions.parquet"),
        ("history.jsonl", '{"epoch": 1, "loss": 1.0, "seconds": 0.1}\n', "model.safetensors"),
        ("trackers.json", "{}", "metrics.json"),
        ("trackers.json", '{"wandb": "x1"}', "metrics.json"),
    ],
)
def test_a_file_of_the_user_beside_one_of_a_run_is_not_overwritten(
    tmp_path: Path, beside: str, content: str, name: str
) -> None:
    (tmp_path / beside).write_text(content)
    (tmp_path / name).write_text("precious")
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=5)
    with pytest.raises(RunError, match=re.escape(name)):
        run(task, settings=["train.epochs=1", "train.device=cpu"], out=tmp_path)
    assert (tmp_path / name).read_text() == "precious"


def test_a_file_of_the_user_beside_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    interrupted(1, tmp_path / "run", RECIPE)
    (tmp_path / "run" / "metrics.json").write_text("precious")
    with pytest.raises(RunError, match=r"metrics\.json"):
        run(RECIPE, out=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.json").read_text() == "precious"


def test_every_file_of_a_run_is_recognized_without_its_manifest(tmp_path: Path) -> None:
    """A process that is killed just before the manifest leaves all of them."""
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=5)
    settings = ["train.epochs=1", "train.device=cpu"]
    run(task, settings=settings, out=tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "trackers.json").write_text('{"wandb": "x1"}')
    run(task, settings=settings, out=tmp_path)
    assert (tmp_path / "manifest.json").exists()


def test_other_files_of_the_user_may_be_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(RECIPE, out=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("before", [(), (".lock", "task.npz")], ids=["new", "of a killed run"])
def test_a_run_that_fails_before_training_leaves_the_folder_usable(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """Its task is written first; the next run must not regard that as a file of the user."""
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=5)
    folder, settings = tmp_path / "run", ["train.epochs=1", "train.device=cpu"]
    for name in before:
        folder.mkdir(exist_ok=True)
        (folder / name).touch()

    def with_columns(columns: int) -> Callable[[Sizes], MaskedLabels]:
        return lambda sizes: MaskedLabels(nn.Linear(5, columns), sizes, width=5, inputs="X")

    with pytest.raises(ModelError, match=r"\(60, 4\).*\(60, 3\)"):
        run(task, settings=settings, model=with_columns(4), out=folder)
    assert folder.exists() == bool(before)
    run(task, settings=settings, model=with_columns(3), out=folder)
    assert (folder / "manifest.json").exists()


def test_a_run_without_training_that_is_stopped_leaves_the_folder_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    recipe = RECIPE.with_settings(["model.name=label-propagation"])
    with monkeypatch.context() as patch:
        patch.setattr("unimp.runs.folder.writing.write_json", stopped)  # after recipe.toml
        with pytest.raises(KeyboardInterrupt):
            run(recipe, out=tmp_path / "run")
    run(recipe, out=tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize("step", ["acquire", "release"])
def test_a_signal_while_the_folder_is_locked_or_released_leaves_no_folder(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(FileLock, step)

    def interrupted(lock: FileLock, *arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return original(lock, *arguments, **options)

    monkeypatch.setattr(FileLock, step, interrupted)
    with pytest.raises(KeyboardInterrupt), held_folder(tmp_path / "run"):
        assert step == "release"
    assert not (tmp_path / "run").exists()
    with held_folder(tmp_path / "run"):
        assert in_use(tmp_path / "run")
