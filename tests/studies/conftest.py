"""A small task with features, edge features and classes, and studies run on it once."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.studies.cells import Subject, subject_of
from unimp.studies.reproduce import reproduce

FEW = ("train.epochs=2", "model.width=4", "model.layers=2", "train.device=cpu")


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("task") / "small.npz"
    task = synthetic_task(
        num_nodes=80,
        num_edges=200,
        num_classes=3,
        num_features=6,
        edge_features=2,
        split_shares=(0.4, 0.2, 0.4),
        seed=1,
    )
    save_npz(task, path)
    return path


@pytest.fixture(scope="session")
def small_subject(task_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    out = tmp_path_factory.mktemp("cells")
    return subject_of(str(task_file), seeds=(0, 1), out=out, settings=FEW)


@pytest.fixture(scope="session")
def run_studies(task_file: Path) -> Callable[..., list[str]]:
    """Run studies on the small task; return the printed lines."""

    def run(
        out: Path, *names: str, seeds: Iterable[int] = (0,), settings: Iterable[str] = ()
    ) -> list[str]:
        lines: list[str] = []
        reproduce(
            names,
            task=str(task_file),
            seeds=tuple(seeds),
            settings=(*FEW, *settings),
            out=out,
            say=lines.append,
        )
        return lines

    return run


@pytest.fixture(scope="session")
def everything(
    run_studies: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    """Every study with two seeds: the folder of its pages, and the printed lines."""
    out = tmp_path_factory.mktemp("everything")
    lines = run_studies(out, "all", seeds=(0, 1))
    return SimpleNamespace(out=out, place=out / "small", lines=lines)
