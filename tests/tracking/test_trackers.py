"""Trackers: what each receives, that each is closed, and that no other machine is contacted.

W&B and MLflow themselves are tested where they are installed, with local files only.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import unimp
from unimp.config.recipe import Recipe
from unimp.errors import RecipeError, UnimpError
from unimp.runs.experiment import run
from unimp.tracking.trackers import Place, Trackers
from unimp.training.loop import Epoch

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.02",
        "model.width=4",
        "train.epochs=4",
        "train.eval_every=2",
        "train.device=cpu",
    ]
)


class Recorder:
    """A tracker that records what it receives; it fails at the epoch `breaks`."""

    HINT = "Set WANDB_MODE=offline"
    breaks: int | None = None
    breaks_with: type[BaseException] = ConnectionError
    refuses: BaseException | None = None

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, float], int]] = []
        self.endings: list[str] = []
        self.previous_ids: list[str | None] = []

    def Run(self, place: Place) -> "Recorder":  # noqa: N802
        if self.refuses is not None:
            raise self.refuses
        self.previous_ids.append(place.previous_id)
        return self

    @property
    def id(self) -> str:
        return f"run {len(self.previous_ids)}"

    def epoch(self, values: Any, epoch: int) -> None:
        if epoch == self.breaks:
            raise self.breaks_with("nobody answers")
        self.received.append((dict(values), epoch))

    scores = epoch

    def close(self, ending: str) -> None:
        self.endings.append(ending)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "unimp.tracking.wandb", recorder)  # type: ignore[arg-type]
    return recorder


def stopped_after(epoch: int, stop: BaseException) -> Any:
    def on_epoch(done: Epoch) -> None:
        if done.epoch == epoch:
            raise stop

    return on_epoch


def test_every_epoch_and_the_scores_are_sent_once_and_the_tracker_is_closed(
    recorder: Recorder, tmp_path: Path
) -> None:
    done = run(RECIPE, seed=2, out=tmp_path / "run", log=["wandb", "wandb"])
    assert [step for _, step in recorder.received] == [1, 2, 3, 4, 4]
    assert {"loss", "seconds", "val", "test"} == recorder.received[0][0].keys()
    assert {"loss", "seconds"} == recorder.received[1][0].keys()
    scores = done.metrics["scores"]
    assert recorder.received[-1][0] == {
        "final/train/val": scores["train"]["val"],
        "final/train/test": scores["train"]["test"],
        "final/train_and_val/test": scores["train+val"]["test"],
    }
    assert recorder.endings == ["finished"]


def test_a_resumed_run_continues_in_the_tracker(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=tmp_path, log=["wandb"], on_epoch=stopped_after(2, KeyboardInterrupt()))
    with pytest.raises(RuntimeError):
        run(RECIPE, out=tmp_path, log=["wandb"], on_epoch=stopped_after(3, RuntimeError()))
    run(RECIPE, out=tmp_path, log=["wandb"])
    assert recorder.endings == ["interrupted", "failed", "finished"]
    assert recorder.previous_ids == [None, "run 1", "run 2"]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run 3"}


def test_a_run_that_starts_again_is_a_new_run_in_the_tracker(
    recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "trackers.json").write_text('{"wandb": "of a run that was taken away"}')
    run(RECIPE, out=tmp_path, log=["wandb"])
    assert recorder.previous_ids == [None]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run 1"}


@pytest.mark.parametrize("text", ["[]", '{"wandb": 5}', '"wandb"', "null", "{", "\xff"])
def test_a_resumed_run_with_a_damaged_file_of_ids_is_a_new_run_in_the_tracker(
    text: str, recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=tmp_path, log=["wandb"], on_epoch=stopped_after(2, KeyboardInterrupt()))
    (tmp_path / "trackers.json").write_bytes(text.encode("latin-1"))
    run(RECIPE, out=tmp_path, log=["wandb"], progress=True)
    assert recorder.previous_ids == [None, None]
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "run 2"}
    assert "trackers.json is damaged" in capsys.readouterr().err


def test_a_run_that_never_trained_leaves_no_folder(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(UnimpError):
        run(RECIPE, out=tmp_path / "run", log=["wandb"], settings=["task.name=no-such"])
    assert recorder.endings == ["failed"]
    assert not (tmp_path / "run").exists()


FAILED = "--log wandb failed; training continues without it: nobody answers"


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
def test_a_tracker_that_fails_is_dropped_and_training_continues(
    error: type[BaseException],
    recorder: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorder.breaks, recorder.breaks_with = 2, error
    done = run(RECIPE, out=tmp_path, log=["wandb"], progress=True)
    assert done.metrics["epochs"] == 4
    assert [step for _, step in recorder.received] == [1]
    assert recorder.endings == ["finished"]
    assert capsys.readouterr().err.count(FAILED) == 1


def test_ctrl_c_while_a_tracker_works_stops_the_run(recorder: Recorder, tmp_path: Path) -> None:
    recorder.breaks, recorder.breaks_with = 2, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=tmp_path, log=["wandb"])
    assert recorder.endings == ["interrupted"]


def test_a_tracker_that_fails_without_visible_progress_is_a_warning(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.breaks = 2
    with pytest.warns(UserWarning, match=FAILED):
        run(RECIPE, out=tmp_path, log=["wandb"], progress=False)


def test_a_tracker_that_cannot_be_opened_is_an_error_with_a_hint(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.refuses = RuntimeError("No API key.")
    with pytest.raises(UnimpError, match=r"No API key\. .*WANDB_MODE=offline"):
        run(RECIPE, out=tmp_path / "run", log=["wandb"])
    assert not (tmp_path / "run").exists()


def test_numbers_that_are_not_finite_are_left_out(recorder: Recorder, tmp_path: Path) -> None:
    with Trackers(["wandb"], Place(RECIPE, 0, tmp_path)) as trackers:
        trackers.epoch(Epoch(3, 0.5, 1.0, {"val": 0.25, "test": float("nan")}))
    assert recorder.received == [({"loss": 0.5, "seconds": 1.0, "val": 0.25}, 3)]


@pytest.mark.parametrize("log", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_an_error_that_names_the_extra(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"tensorboard": "torch.utils.tensorboard"}.get(log, log)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(UnimpError, match=rf'pip install "unimp\[{log}\]"'):
        run(RECIPE, out=tmp_path / "run", log=[log])
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match="'tensorbord' is not a tracker; did you mean 'tensorboard'"
    ):
        run(RECIPE, out=tmp_path / "run", log=["tensorbord"])
    assert not (tmp_path / "run").exists()


# The calls to the libraries, also where they are not installed


class Library:
    """Replaces wandb or mlflow: it records the calls, and has one run with the id `it`."""

    run = None
    info = SimpleNamespace(run_id="it")

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> "Library | None":
            self.calls.append((name, arguments, options))
            return None if name == "active_run" else self

        return call

    def options(self, name: str) -> list[dict[str, Any]]:
        return [options for called, _, options in self.calls if called == name]


@pytest.mark.parametrize(
    ("log", "start", "send", "end"),
    [
        ("wandb", "init", "log", ("finish", (), {"exit_code": 0})),
        ("mlflow", "start_run", "log_metrics", ("end_run", ("FINISHED",), {})),
    ],
)
def test_a_run_starts_logs_and_ends_with_the_calls_of_the_library(
    log: str, start: str, send: str, end: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, log, library)  # type: ignore[arg-type]
    run(RECIPE, seed=2, out=tmp_path, log=[log])
    (options,) = library.options(start)
    assert "small seed 2" in options.values()
    assert [options["step"] for options in library.options(send)] == [1, 2, 3, 4, 4]
    assert library.calls[-1] == end


def test_a_wandb_run_that_the_caller_opened_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    library.run = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    with pytest.raises(UnimpError, match=r"already open.*wandb\.finish\(\)"):
        run(RECIPE, out=tmp_path / "run", log=["wandb"])
    assert not library.calls


# The libraries themselves


def interrupted_then_finished(log: str, folder: Path) -> tuple[list[float], unimp.Run]:
    """A run that is stopped in its third epoch, after a checkpoint in its first, and resumed."""
    losses: dict[int, float] = {}

    def kept(epoch: Epoch) -> None:
        losses[epoch.epoch] = epoch.loss

    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=folder, log=[log], on_epoch=stopped_after(3, KeyboardInterrupt()))
    done = run(RECIPE, out=folder, log=[log], on_epoch=kept)
    assert sorted(losses) == [1, 2, 3, 4]  # so that some epochs were sent twice
    return list(losses.values()), done


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_each_epoch_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses, done = interrupted_then_finished("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(losses)
    assert [e.step for e in events.Scalars("val")] == [1, 3, 4]
    (last,) = events.Scalars("final/train_and_val/test")
    assert last.step == 4
    assert last.value == pytest.approx(done.metrics["scores"]["train+val"]["test"])


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with a store in this folder."""
    for package in ("sqlalchemy", "alembic"):
        pytest.importorskip(package, reason="MLflow's local store needs it")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    library = pytest.importorskip("mlflow", reason="needs mlflow-skinny")
    monkeypatch.chdir(tmp_path)
    before = library.get_tracking_uri()
    library.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield library
    library.set_tracking_uri(before)


@pytest.mark.filterwarnings("default")
def test_mlflow_holds_one_run_with_options_epochs_and_scores(mlflow: Any, tmp_path: Path) -> None:
    losses, done = interrupted_then_finished("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient()
    (found,) = client.search_runs(["0"])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "small seed 0"
    assert found.data.params["model.width"] == "4"
    assert found.data.params["seed"] == "0"
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == list(enumerate(losses, 1))
    history = client.get_metric_history(found.info.run_id, "val")
    assert [point.step for point in history] == [1, 3, 4]
    for protocol in ("train", "train+val"):
        name = f"final/{protocol.replace('+', '_and_')}/test"
        assert found.data.metrics[name] == done.metrics["scores"][protocol]["test"]
    assert mlflow.active_run() is None


@pytest.mark.filterwarnings("default")
def test_mlflow_marks_an_interrupted_run_and_a_deleted_run_is_replaced(
    mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, folder = mlflow.MlflowClient(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=folder, log=["mlflow"], on_epoch=stopped_after(2, KeyboardInterrupt()))
    (found,) = client.search_runs(["0"])
    assert found.info.status == "KILLED"
    client.delete_run(found.info.run_id)
    run(RECIPE, out=folder, log=["mlflow"], progress=True)
    (other,) = client.search_runs(["0"])
    assert other.info.run_id != found.info.run_id
    assert other.info.status == "FINISHED"
    assert f"run {found.info.run_id} is missing" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_temporary_error_of_mlflow_is_raised_and_no_second_run_is_started(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(RECIPE, out=folder, log=["mlflow"], on_epoch=stopped_after(2, KeyboardInterrupt()))

    def unavailable(*arguments: Any) -> None:
        raise mlflow.MlflowException("try later")

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "get_run", unavailable)
        with pytest.raises(UnimpError, match="--log mlflow cannot be opened: try later"):
            run(RECIPE, out=folder, log=["mlflow"])
    assert len(mlflow.MlflowClient().search_runs(["0"])) == 1
    (folder / "trackers.json").write_text(json.dumps({"mlflow": "0" * 32}))
    with pytest.warns(UserWarning, match="is missing"):
        run(RECIPE, out=folder, log=["mlflow"])
    assert len(mlflow.MlflowClient().search_runs(["0"])) == 2


@pytest.mark.filterwarnings("default")
def test_inside_a_run_of_the_caller_mlflow_nests_ours(mlflow: Any, tmp_path: Path) -> None:
    long = {f"column {i}": "numeric" for i in range(2000)}  # longer than a parameter may be
    recipe = RECIPE.with_settings({"tables.features": long})
    with mlflow.start_run() as mine:
        run(recipe, out=tmp_path / "run", log=["mlflow"])
        assert mlflow.active_run().info.run_id == mine.info.run_id
    (part,) = (r for r in mlflow.MlflowClient().search_runs(["0"]) if "seed" in r.data.params)
    assert part.data.tags["mlflow.parentRunId"] == mine.info.run_id


def records(path: Path) -> Iterator[Any]:
    """The records in a file of W&B: blocks of chunks, in the format of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    block, header = 32768, 7
    data, at, whole = path.read_bytes(), header, b""
    while at + header <= len(data):
        left = block - at % block
        if left < header:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + header : at + header + size]
        at += header + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


@pytest.mark.filterwarnings("default")
def test_wandb_stores_both_parts_of_a_resumed_run_under_one_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    losses, done = interrupted_then_finished("wandb", tmp_path)
    run_id = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    pieces = sorted((tmp_path / "wandb").glob("offline-run-*"), key=lambda p: p.stat().st_mtime)
    sent: list[dict[int, dict[str, Any]]] = []
    codes = []
    for piece in pieces:
        found = list(records(piece / f"run-{run_id}.wandb"))
        (begun,) = (r.run for r in found if r.WhichOneof("record_type") == "run")
        assert (begun.run_id, begun.project, begun.display_name) == (
            run_id,
            "unimp",
            "small seed 0",
        )
        config = {entry.key: json.loads(entry.value_json) for entry in begun.config.update}
        assert config["model"]["width"] == 4
        codes += [r.exit.exit_code for r in found if r.WhichOneof("record_type") == "exit"]
        sent.append(
            {
                r.history.step.num: {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in r.history.item
                }
                for r in found
                if r.WhichOneof("record_type") == "history"
            }
        )
    assert codes == [255, 0]
    assert [sorted(steps) for steps in sent] == [[1, 2, 3], [1, 2, 3, 4]]
    assert [sent[1][step]["loss"] for step in (1, 2, 3, 4)] == losses
    last = sent[1][4]["final/train_and_val/test"]
    assert last == done.metrics["scores"]["train+val"]["test"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests of a program that uses the proxy of its environment."""
    found: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:  # closed
                return
            with caller:
                found.append(caller.recv(200).split(b"\r\n")[0].decode())

    thread = threading.Thread(target=listen)
    thread.start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        for variable in (name, name.lower()):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{listener.getsockname()[1]}")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    yield found
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.parametrize(
    ("log", "packages"),
    [
        ("tensorboard", ["tensorboard"]),
        ("wandb", ["wandb"]),
        ("mlflow", ["mlflow", "sqlalchemy", "alembic"]),
    ],
)
def test_a_local_tracker_contacts_nobody(
    log: str, packages: list[str], tmp_path: Path, calls: list[str]
) -> None:
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}")
    settings = ["task.scale=0.02", "model.width=4", "train.epochs=2", "train.device=cpu"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "unimp", "train", "synthetic", *words, "--out", "run", "--log", log],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(unimp.__file__).parents[1]),
            "WANDB_MODE": "offline",
        },
    )
    assert done.returncode == 0, done.stderr
    assert calls == []
    assert (tmp_path / "run" / log).is_dir() == (log != "mlflow")


def test_a_request_would_be_found(calls: list[str]) -> None:
    program = "import urllib.request as u; u.urlopen('http://example.org/', timeout=10)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 1
    assert calls == ["GET http://example.org/ HTTP/1.1"]
