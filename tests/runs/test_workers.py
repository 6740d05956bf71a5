"""Members can be trained in several processes, with the results of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import unimp
from unimp.config.recipe import Recipe
from unimp.config.run_files import CHECKPOINT, MANIFEST, MEMBERS
from unimp.ensemble import portfolio
from unimp.runs import workers
from unimp.runs.context import Experiment
from unimp.runs.folder.lock import in_use
from unimp.runs.preparation import is_small
from unimp.runs.run import Run
from unimp.tasks.task import Task

NAMES = ["label-propagation", "mlp", "gcn"]
BYTES = ("model.safetensors", "predictions.parquet")
SETTINGS: dict[str, Any] = {
    "task.scale": 0.05,
    "task.split": 0,
    "train.device": "cpu",
    "ensemble.portfolio": "good",
    "ensemble.members": NAMES,
}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and locks are those of POSIX")


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {**portfolio.FRAME, "train.epochs": 12, "model.width": 16}
    monkeypatch.setattr(portfolio, "FRAME", short)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    """A worker has one thread here, and members are bitwise equal for equal numbers of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(out: Path | None = None, jobs: int = 2, **more: Any) -> Run:
    settings = {**SETTINGS, "ensemble.jobs": jobs}
    return unimp.run("synthetic", out=out, settings=settings, report=False, **more)


def results_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in BYTES
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ensemble of one process."""
    with pytest.MonkeyPatch.context() as patch:
        short_trainings.__wrapped__(patch)  # type: ignore[attr-defined]
        folder = tmp_path_factory.mktemp("expected") / "run"
        train(folder, jobs=1)
    return folder


def process_of(folder: Path) -> int:
    """The process that holds a folder."""
    return int((folder / ".lock").read_text())


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_two_jobs_write_the_bytes_of_one(expected: Path, tmp_path: Path) -> None:
    epochs: list[int] = []
    run = train(tmp_path / "run", on_epoch=lambda epoch: epochs.append(epoch.epoch))
    assert results_in(tmp_path / "run") == results_in(expected)
    assert [row["name"] for row in run.metrics["ensemble"]["members"]] == NAMES
    assert sorted(epochs) == sorted([*range(1, 13), *range(1, 13)])  # of both members
    manifest = json.loads((tmp_path / "run" / MEMBERS / "mlp" / MANIFEST).read_text())
    assert manifest["command"] == sys.argv
    train(tmp_path / "run", jobs=1)  # the number of jobs does not make it another run


def test_a_task_object_without_a_folder_is_passed_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    task = replace(unimp.load_task("synthetic", scale=0.05), name="my graph")
    settings = {k: v for k, v in SETTINGS.items() if not k.startswith("task.")}
    runs = [unimp.run(task, settings={**settings, "ensemble.jobs": jobs}) for jobs in (1, 2)]
    assert torch.equal(*(run.predict() for run in runs))
    assert runs[1].folder is None
    assert not list(tmp_path.iterdir())


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import unimp\n"
        f"settings = { ({**SETTINGS, 'ensemble.jobs': 2})!r}\n"
        "run = unimp.run('synthetic', settings=settings, report=False, progress=False)\n"
        "print(len(run.metrics['ensemble']['members']))\n"
    )
    (tmp_path / "random.py").write_text("raise SystemExit('not a module for workers')\n")
    found = subprocess.run(
        [sys.executable, "-P", str(script)], capture_output=True, text=True, cwd=tmp_path
    )
    assert found.stdout == "3\n", found.stderr


def test_a_worker_that_is_killed_costs_only_its_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    long = {**portfolio.FRAME, "train.epochs": 1000, "train.patience": 0}
    monkeypatch.setattr(portfolio, "FRAME", long)

    def kill(epoch: Any) -> None:
        member = folder / MEMBERS / "gcn"
        if (member / CHECKPOINT).exists() and in_use(member):
            os.kill(process_of(member), signal.SIGKILL)

    run = train(folder, on_epoch=kill)
    summary = run.metrics["ensemble"]
    assert [row["name"] for row in summary["members"]] == ["label-propagation", "mlp"]
    assert f"signal {int(signal.SIGKILL)}" in summary["left_out"]["gcn"]


def test_members_are_trained_here_if_workers_cannot_load_the_task(
    expected: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    about = workers.Trainer._about
    other = {"data_hash": "another"}
    monkeypatch.setattr(workers.Trainer, "_about", lambda self: {**about(self), **other})
    train(tmp_path / "run", progress=True)
    assert results_in(tmp_path / "run") == results_in(expected)
    assert "other data" in capfd.readouterr().err


class StoppedError(Exception):
    """Stands for Ctrl-C."""


def test_an_interrupted_command_ends_its_workers_and_resumes(
    expected: Path, tmp_path: Path
) -> None:
    folder, counted = tmp_path / "run", 0

    def stop(epoch: Any) -> None:
        nonlocal counted
        counted += 1
        if counted == 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(folder, on_epoch=stop)
    members = list((folder / MEMBERS).iterdir())
    assert not any(in_use(member) for member in members)
    train(folder)
    assert results_in(folder) == results_in(expected)


def test_workers_of_a_killed_command_end_and_the_command_resumes(
    expected: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    script = tmp_path / "script.py"
    script.write_text(
        "import unimp\n"
        "from unimp.ensemble import portfolio\n"
        f"portfolio.FRAME = {dict(portfolio.FRAME)!r}\n"
        f"settings = { ({**SETTINGS, 'ensemble.jobs': 2})!r}\n"
        f"unimp.run('synthetic', out={str(folder)!r}, settings=settings, report=False)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)])
    member = folder / MEMBERS / "gcn"
    wait_until(lambda: (member / CHECKPOINT).exists() or (member / MANIFEST).exists())
    process.kill()
    process.wait()
    train(folder)  # at once: it waits for the workers of the killed command
    assert results_in(folder) == results_in(expected)


def test_a_member_resumes_with_the_threads_that_it_was_started_with(tmp_path: Path) -> None:
    recipe = Recipe().with_settings({"task.name": "synthetic", "task.scale": 0.05})
    recipe = recipe.with_settings({"train.epochs": 3, "model.width": 16, "train.device": "cpu"})

    def stop(epoch: Any) -> None:
        raise StoppedError

    with pytest.raises(StoppedError):
        unimp.run(recipe, out=tmp_path / "run", on_epoch=stop, report=False)
    torch.set_num_threads(2)
    try:
        experiment = Experiment(recipe, 0, "cpu", tmp_path / "run")
        found = workers.train_or_resume(experiment, lambda e: torch.get_num_threads())  # type: ignore[arg-type, return-value]
        assert found == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


class Expected(NamedTuple):
    memory: int


@pytest.fixture
def task() -> Task:
    return unimp.load_task("synthetic", scale=1.0)


def planned(
    task: Task, cores: int, members: int = 10, memory: int = 2**40, **settings: Any
) -> workers.Plan:
    recipe = Recipe().with_settings(settings)
    experiment = Experiment(recipe, 0, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "usable_cores", lambda: cores)
        patch.setattr(workers, "available_memory", lambda device: memory)
        return workers.plan(experiment, [Recipe()] * members, task)


def test_the_number_of_workers_follows_from_cores_members_time_and_memory(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_small(task.graph)
    assert planned(task, 2) == (2, 1)
    assert planned(task, 32) == (8, 4)
    assert planned(task, 4, members=3) == (3, 1)
    for alone in (planned(task, 1), planned(task, 4, members=1)):
        assert alone.jobs == 1
    assert planned(task, 4, **{"train.time_limit": 20.0}).jobs == 1
    assert planned(unimp.load_task("synthetic", scale=0.05), 4).jobs == 1
    assert planned(task, 1, **{"ensemble.jobs": 3}) == (3, 1)
    assert planned(task, 8, **{"ensemble.jobs": 1}).jobs == 1
    monkeypatch.setattr(workers, "estimate", lambda *more, **options: Expected(2**30))
    assert planned(task, 8, memory=3 * 2**30).jobs == 2
