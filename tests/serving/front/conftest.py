"""Servers on copies of one small run."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import Server, serving
from small_runs import table_run

from unimp.runs.run import Run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def copied(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A function that copies the run folder, so that each server starts without events."""

    def copy() -> Path:
        assert trained.folder is not None
        folder = tmp_path_factory.mktemp("served") / "run"
        shutil.copytree(trained.folder, folder)
        return folder

    return copy


@pytest.fixture(scope="module")
def server(copied: Callable[[], Path]) -> Iterator[Server]:
    """A server that the tests of a module share; no token is needed."""
    with serving(copied()) as made:
        yield made
