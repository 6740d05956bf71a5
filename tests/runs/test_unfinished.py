"""A run that is interrupted goes on and ends in the same bytes; what is not its own is refused."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimp.cli import main
from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import RecipeError, RunError
from unimp.model.masked_labels import MaskedLabels
from unimp.runs.experiment import run
from unimp.runs.folder import unfinished
from unimp.runs.folder.lock import in_use, locked
from unimp.runs.preparation import tables_of
from unimp.runs.run import load_run
from unimp.tasks.task import Sizes, Task
from unimp.training.checkpoint import load_checkpoint, save_checkpoint
from unimp.training.interruption import Interruption, signals_held
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
KEPT = ("model.safetensors", "predictions.parquet")


class Killed(BaseException):
    """Stands for the end of the process: nothing that follows it is run."""


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """As in a terminal: a shell's background jobs are begun with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def killed_at(write: int, patch: pytest.MonkeyPatch) -> None:
    """End the run right after so many checkpoints were written."""
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
    assert (folder / unfinished.CHECKPOINT).exists()


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in KEPT}


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def losses(folder: Path) -> list[tuple[float, Any]]:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [(line["epoch"], line["loss"], line.get("val")) for line in lines]


@pytest.mark.parametrize(
    ("settings", "writes"),
    [
        (["batch.regime=full"], (1, 2, 7, 16)),
        (["batch.regime=full", "batch.prune=false", "train.patience=2"], (5,)),
        (["batch.regime=full", "model.name=gcn-lpa"], (6,)),
        (["batch.regime=partition", "mask.redraw=step"], (3, 18)),
        (["batch.regime=partition", "mask.redraw=run", "inference.regime=partition"], (9,)),
        (["batch.regime=neighbors", "mask.redraw=step"], (3, 11)),
        (["batch.regime=neighbors", "model.attention_dropout=0.2"], (14,)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_an_interrupted_run_ends_in_the_same_bytes(
    settings: list[str], writes: Sequence[int], tmp_path: Path
) -> None:
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
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
    """A module of one's own, with dropout, and with running means that are no parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(16), nn.Linear(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(self.norm(x), 0.5, self.training)
        return self.out(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))


def own_model(sizes: Sizes) -> MaskedLabels:
    return MaskedLabels(MeanOfNeighbors(sizes.classes), sizes, width=16)


def test_a_model_and_a_task_of_ones_own_go_on(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=200, num_edges=600, num_classes=4, num_features=8)
    settings = ["train.epochs=5", "train.device=cpu", "train.checkpoint_every=1e-9"]
    run(task, model=own_model, settings=settings, out=tmp_path / "whole")
    interrupted(5, tmp_path / "run", task, model=own_model, settings=settings)
    with pytest.raises(RunError, match="model MaskedLabels, now None"):
        run(task, settings=settings, out=tmp_path / "run")
    resumed = run(task, model=own_model, settings=settings, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    found = run(task, model=own_model, settings=settings, out=tmp_path / "run")
    assert torch.equal(found.predict(), resumed.predict())


def test_a_model_of_ones_own_that_is_built_otherwise_is_refused_in_words(tmp_path: Path) -> None:
    def wider(sizes: Sizes) -> MaskedLabels:
        module = MeanOfNeighbors(sizes.classes)
        module.norm, module.out = nn.BatchNorm1d(24), nn.Linear(24, sizes.classes)
        return MaskedLabels(module, sizes, width=24)

    task = synthetic_task(num_nodes=90, num_edges=200, num_classes=3, num_features=8)
    settings = ["train.epochs=3", "train.device=cpu"]
    interrupted(1, tmp_path / "run", task, model=own_model, settings=settings)
    before = bytes_in(tmp_path / "run")
    with pytest.raises(
        RunError, match=r"built otherwise: .*shape.*16.*the model needs.*24"
    ) as told:
        run(task, model=wider, settings=settings, out=tmp_path / "run")
    assert "more. Give the model that the run was begun with" in str(told.value)
    assert bytes_in(tmp_path / "run") == before
    run(task, model=own_model, settings=settings, out=tmp_path / "run")


def test_an_unfinished_run_of_ones_own_task_goes_on_where_its_folder_was_moved(
    tmp_path: Path,
) -> None:
    def task(seed: int) -> Task:
        return synthetic_task(num_nodes=90, num_edges=200, num_classes=3, seed=seed)

    settings = ["train.epochs=4", "train.device=cpu", "train.checkpoint_every=1e-9"]
    run(task(0), settings=settings, out=tmp_path / "whole")
    interrupted(5, tmp_path / "run", task(0), settings=settings)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(RunError, match="data that has changed since"):
        run(task(1), settings=settings, out=tmp_path / "moved")
    run(task(0), settings=settings, out=tmp_path / "moved")
    assert bytes_of(tmp_path / "moved") == bytes_of(tmp_path / "whole")
    assert load_run(tmp_path / "moved").task.data_hash() == task(0).data_hash()


def test_an_unfinished_run_of_tables_goes_on_where_its_folder_was_moved(tmp_path: Path) -> None:
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

        def slow(*arguments: Any) -> Task:
            time.sleep(1.1)
            return tables_of(*arguments)

        patch.setattr(sys.modules[run.__module__], "tables_of", slow)
        done = run(recipe, out=tmp_path / "moved")
    assert bytes_of(tmp_path / "moved") == bytes_of(tmp_path / "whole")
    assert done.metrics["seconds"] > 1.1  # reading counts


def test_epochs_told_before_the_interruption_are_not_told_again(tmp_path: Path) -> None:
    first: list[Epoch] = []
    second: list[Epoch] = []
    interrupted(9, tmp_path / "run", RECIPE, on_epoch=first.append)
    run(RECIPE, out=tmp_path / "run", on_epoch=second.append)
    numbers = [epoch.epoch for epoch in first + second]
    assert numbers == list(range(1, 9))
    assert first
    assert second


def test_the_time_of_all_pieces_counts(tmp_path: Path) -> None:
    interrupted(9, tmp_path / "run", RECIPE)
    path = tmp_path / "run" / unfinished.CHECKPOINT
    state = load_checkpoint(path)
    made_with = unfinished.read_about(path)["made_with"]
    state.position.spent = 1000.0
    save_checkpoint(path, state, made_with)
    done = run(RECIPE, out=tmp_path / "run")
    assert done.metrics["seconds"] > 1000


def test_a_time_limit_counts_over_the_pieces(tmp_path: Path) -> None:
    recipe = RECIPE.with_settings(["train.time_limit=900"])
    interrupted(9, tmp_path / "run", recipe)
    path = tmp_path / "run" / unfinished.CHECKPOINT
    state = load_checkpoint(path)
    state.position.spent = 1000.0
    save_checkpoint(path, state, unfinished.read_about(path)["made_with"])
    done = run(recipe, out=tmp_path / "run")
    assert "time limit" in done.metrics["stopped"]
    assert done.metrics["epochs"] < 8


def test_a_run_may_go_on_with_another_time_limit(tmp_path: Path) -> None:
    limited = RECIPE.with_settings(["train.time_limit=900"])
    run(RECIPE, out=tmp_path / "whole")
    interrupted(9, tmp_path / "run", limited)
    done = run(RECIPE, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")
    assert done.recipe.train.time_limit == 0
    with pytest.raises(RunError, match=r"time_limit 0.0, now 900.0\); .*not trained for longer"):
        run(limited, out=tmp_path / "run")


def test_more_epochs_are_another_run(tmp_path: Path) -> None:
    longer = RECIPE.with_settings(["train.epochs=9"])
    refused = r"train.epochs 8, now 9\); a run ends as it was begun, and is not trained for longer"
    interrupted(9, tmp_path / "run", RECIPE)
    with pytest.raises(RunError, match=f"an unfinished run .*{refused}"):
        run(longer, out=tmp_path / "run")
    run(RECIPE, out=tmp_path / "run")
    with pytest.raises(RunError, match=f"a finished run .*{refused}"):
        run(longer, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "seed", "threads", "named"),
    [
        (["train.lr=0.5"], 0, None, "train.lr 0.01, now 0.5"),
        ([], 4, None, "seed 0, now 4"),
        ([], 0, 5, r"1 threads, now 5: set OMP_NUM_THREADS=1"),
    ],
)
def test_a_checkpoint_made_otherwise_is_refused_by_the_difference(
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
    with pytest.raises(RunError, match=f"an unfinished run with other settings .{named}"):
        run(RECIPE.with_settings(settings), seed=seed, out=tmp_path / "run")
    assert bytes_in(tmp_path / "run") == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    def task(seed: int) -> Any:
        return synthetic_task(num_nodes=90, num_edges=200, num_classes=3, seed=seed)

    settings = ["train.epochs=3", "train.device=cpu"]
    interrupted(1, tmp_path / "run", task(0), settings=settings)
    with pytest.raises(RunError, match="data that has changed since"):
        run(task(1), settings=settings, out=tmp_path / "run")
    run(task(0), settings=settings, out=tmp_path / "run")
    with pytest.raises(RunError, match="a finished run of other data"):
        run(task(1), settings=settings, out=tmp_path / "run")


def test_how_often_it_is_kept_may_change(tmp_path: Path) -> None:
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
    path = tmp_path / "run" / unfinished.CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunError, match="remove it to begin this run anew") as error:
        run(RECIPE, out=tmp_path / "run")
    assert str(path) in str(error.value)
    path.unlink()
    run(RECIPE, out=tmp_path / "run")


def test_what_a_killed_writer_left_is_cleared_away(tmp_path: Path) -> None:
    interrupted(3, tmp_path / "run", RECIPE)
    (tmp_path / "run" / ".checkpoint.safetensors.x1y2").write_bytes(b"half")
    (tmp_path / "run" / "mine.txt").write_text("kept")
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

    monkeypatch.setattr("unimp.runs.fitting.train", refuse)
    again = run(RECIPE, seed=2, out=tmp_path / "run")
    assert torch.equal(again.predict(), made.predict())
    assert again.metrics == load_run(tmp_path / "run").metrics


def test_what_a_process_left_that_ended_just_after_the_manifest_is_cleared_away(
    tmp_path: Path,
) -> None:
    run(RECIPE, out=tmp_path / "run")
    whole = {path.name for path in (tmp_path / "run").iterdir()}
    for name in (unfinished.CHECKPOINT, ".lock"):
        (tmp_path / "run" / name).write_bytes(b"left")
    run(RECIPE, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == whole


def test_a_disk_that_is_full_is_told_with_the_file_and_the_run_goes_on_later(
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
    said = capsys.readouterr().err
    assert "stopped in epoch 1 of 4, seed 0; the same command goes on from there" in said
    assert f"error: {folder / 'predictions.parquet'}: cannot be written: No space left" in said
    assert "Free some space" in said
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert load_run(folder).metrics["epochs"] == 4


# One process a folder


def test_a_second_process_is_refused_with_the_number_of_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from unimp.runs.folder.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        assert in_use(tmp_path)
        with pytest.raises(RunError, match=f"in use by process {child.pid}; wait for it"):
            run(RECIPE, out=tmp_path)
        child.kill()
    assert (tmp_path / ".lock").read_text() == str(child.pid)  # left behind
    assert not in_use(tmp_path)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


# Signals


def stopping(at: int, number: int) -> Callable[[Epoch], None]:
    """Send this process a signal after an epoch."""

    def on_epoch(epoch: Epoch) -> None:
        if epoch.epoch == at:
            os.kill(os.getpid(), number)

    return on_epoch


def test_ctrl_c_keeps_what_was_learned_and_is_raised_then(tmp_path: Path) -> None:
    recipe = RECIPE.with_settings(["train.checkpoint_every=0"])
    run(recipe, out=tmp_path / "whole")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, out=tmp_path / "run", on_epoch=stopping(5, signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before
    state = load_checkpoint(tmp_path / "run" / unfinished.CHECKPOINT)
    assert [epoch.epoch for epoch in state.history] == [1, 2, 3, 4, 5]
    assert not in_use(tmp_path / "run")
    run(recipe, out=tmp_path / "run")
    assert bytes_of(tmp_path / "run") == bytes_of(tmp_path / "whole")


def test_a_run_without_a_folder_leaves_signals_alone() -> None:
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        stopping(2, signal.SIGINT)(epoch)

    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, on_epoch=on_epoch)
    assert len(epochs) == 2


def test_a_second_signal_does_not_wait() -> None:
    with signals_held() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_comes_after_the_last_step_is_delivered_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), signals_held():
        os.kill(os.getpid(), signal.SIGINT)


def test_whoever_handles_a_signal_otherwise_gets_it() -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        with signals_held() as interruption:
            os.kill(os.getpid(), signal.SIGTERM)
            assert got == []
            interruption.deliver()
            assert got == [signal.SIGTERM]
            assert interruption.asked is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_held() as interruption:
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.asked is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_trains_without_deciding_about_signals(tmp_path: Path) -> None:
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
    assert Interruption().asked is None


@pytest.mark.parametrize(
    ("names", "ours"), [(["wandb"], True), (["sinks.json", ".lock"], True), (["notes.txt"], False)]
)
def test_a_folder_that_only_sinks_have_written_into_is_gone_on_with(
    names: list[str], ours: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert unfinished.goes_on(tmp_path, RECIPE, [0]) == ours


@pytest.mark.parametrize("name", ["recipe.toml", "report.html", "model.safetensors"])
def test_a_file_that_no_run_left_is_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=rf"holds {name}, which no run left there.*--out"):
        run(RECIPE, out=tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_that_a_run_does_not_write_may_lie_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(RECIPE, out=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("before", [(), (".lock", "task.npz")], ids=["new", "of a killed run"])
def test_a_run_that_fails_before_it_trains_leaves_its_folder_to_the_next(
    before: tuple[str, ...], tmp_path: Path
) -> None:
    """Its task is written first, which must not be taken for a file of somebody else."""
    task = synthetic_task(num_nodes=60, num_edges=200, num_classes=3, num_features=5)
    folder, settings = tmp_path / "run", ["train.epochs=1", "train.device=cpu"]
    folder.mkdir()
    for name in before:
        (folder / name).touch()

    def with_columns(columns: int) -> Callable[[Sizes], MaskedLabels]:
        return lambda sizes: MaskedLabels(nn.Linear(5, columns), sizes, width=5, inputs="X")

    with pytest.raises(RecipeError, match="a column a class"):
        run(task, settings=settings, model=with_columns(4), out=folder)
    assert not folder.exists()
    run(task, settings=settings, model=with_columns(3), out=folder)
    assert (folder / "manifest.json").exists()


def test_a_run_without_training_that_is_stopped_leaves_its_folder_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    recipe = RECIPE.with_settings(["model.name=label-propagation"])
    with monkeypatch.context() as patch:
        patch.setattr("unimp.runs.folder.files.write_json", stopped)  # after recipe.toml
        with pytest.raises(KeyboardInterrupt):
            run(recipe, out=tmp_path / "run")
    run(recipe, out=tmp_path / "run")
    assert (tmp_path / "run" / "manifest.json").exists()


def test_a_signal_while_the_lock_is_let_go_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unlink = tmp_path / "run", Path.unlink

    def interrupted(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.setattr(Path, "unlink", unlink)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), unfinished.opened(folder):
        monkeypatch.setattr(Path, "unlink", interrupted)
    assert not folder.exists()


def test_a_signal_while_the_lock_is_taken_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(KeyboardInterrupt), unfinished.opened(tmp_path / "run"):
        raise AssertionError("it is not held")
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    with unfinished.opened(tmp_path / "run"):  # nobody holds it
        pass
