"""A run folder is what its manifest says: changed files are refused, and so are links and pipes."""

import json
import os
import runpy
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import unimp
from unimp.errors import RunError
from unimp.runs.folder.resume import held_folder

PROOFS = Path(__file__).parents[3] / "proofs"
SETTINGS = {
    "task.scale": 0.02,
    "model.width": 4,
    "model.layers": 1,
    "train.epochs": 2,
    "train.device": "cpu",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    unimp.run("synthetic", out=folder, settings=SETTINGS)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    """A read of a pipe without a writer would wait forever."""

    def waited(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def change(folder: Path, name: str, place: str, value: Any) -> None:
    """Change one field of a JSON file."""
    values = json.loads((folder / name).read_text())
    *outer, last = place.split(".")
    inside = values
    for key in outer:
        inside = inside[key]
    inside[last] = value
    (folder / name).write_text(json.dumps(values))


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.json", "recipe.toml"])
def test_a_changed_byte_is_refused_with_the_file_and_a_fix(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[-20] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(RunError, match=rf"{name} changed after the run was written.*Restore"):
        unimp.load_run(folder)


def test_a_changed_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(RunError, match=r"manifest\.json changed"):
        unimp.load_run(folder)


@pytest.mark.parametrize("value", [-1, 0, 1e9, "1", None, True])
def test_a_temperature_that_cannot_be_is_refused(
    folder: Path, value: Any, sign_run: Callable[[Path], None]
) -> None:
    change(folder, "metrics.json", "calibration.temperature", value)
    sign_run(folder)
    with pytest.raises(RunError, match=r"metrics\.json.*calibration\.temperature"):
        unimp.load_run(folder)


@pytest.mark.parametrize("value", ["0", -1, 1.5, None, [0], 2**64])
def test_a_seed_that_is_not_a_seed_is_refused(
    folder: Path, value: Any, sign_run: Callable[[Path], None]
) -> None:
    change(folder, "manifest.json", "seed", value)
    sign_run(folder)
    with pytest.raises(RunError, match=r"manifest\.json.*seed"):
        unimp.load_run(folder)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("x")])
@pytest.mark.parametrize("name", ["manifest.json", "metrics.json", "model.safetensors"])
def test_only_regular_files_are_read(
    folder: Path, name: str, make: Callable[[Path], object]
) -> None:
    (folder / name).rename(folder / "x")
    make(folder / name)
    with pytest.raises(RunError, match=name):
        unimp.load_run(folder)


def test_a_file_of_absurd_size_is_refused_without_reading_it(folder: Path) -> None:
    for name in ("model.safetensors", "metrics.json", "manifest.json"):
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(RunError, match=name):
            unimp.load_run(folder)


def test_a_checkpoint_of_another_version_is_refused_with_that_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "train.checkpoint_every": 1e-9}

    def stop(epoch: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unimp.run("synthetic", out=tmp_path / "run", settings=settings, on_epoch=stop)
    with monkeypatch.context() as patch:
        patch.setattr("torch.__version__", "2.99.0")
        with pytest.raises(RunError, match=r"torch .* and 2\.99\.0 here: install torch"):
            unimp.run("synthetic", out=tmp_path / "run", settings=settings)
    assert unimp.run("synthetic", out=tmp_path / "run", settings=settings).metrics["epochs"] == 2


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, "a pipe"), (lambda path: path.symlink_to("x"), "a link")]
)
def test_weights_that_are_a_link_or_a_pipe_are_named_as_such(
    folder: Path, make: Callable[[Path], object], kind: str
) -> None:
    (folder / "model.safetensors").rename(folder / "x")
    make(folder / "model.safetensors")
    with pytest.raises(RunError, match=rf"model\.safetensors is {kind}"):
        unimp.load_run(folder)


@pytest.mark.parametrize("kind", ["symlink", "hardlink"])
def test_a_link_named_lock_is_refused_and_its_target_stays(tmp_path: Path, kind: str) -> None:
    target, folder = tmp_path / "mine.txt", tmp_path / "run"
    target.write_text("of the user")
    folder.mkdir()
    if kind == "symlink":
        (folder / ".lock").symlink_to(target)
    else:
        os.link(target, folder / ".lock")
    with pytest.raises(RunError, match=r"\.lock is not a lock"):
        unimp.run("synthetic", out=folder, settings=SETTINGS)
    assert target.read_text() == "of the user"


@pytest.mark.parametrize("name", ["metrics.json", "report.html", "history.jsonl", "task.npz"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_with_the_name_of_a_file_of_a_run_is_refused(
    tmp_path: Path, name: str, exists: bool
) -> None:
    target, folder = tmp_path / "mine.txt", tmp_path / "run"
    folder.mkdir()
    if exists:
        target.write_text("of the user")
    (folder / name).symlink_to(target)
    with pytest.raises(RunError, match=rf"{name} is a link"):
        unimp.run("synthetic", out=folder, settings=SETTINGS)
    assert target.exists() == exists
    assert not exists or target.read_text() == "of the user"


def test_a_report_is_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.html"
    target.write_text("of the user")
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(target)
    with pytest.raises(RunError, match=r"report\.html is a link"):
        unimp.load_run(folder).report()
    assert target.read_text() == "of the user"


@pytest.mark.parametrize("lock", ["", "12345"])
def test_a_failed_run_removes_only_what_it_wrote(tmp_path: Path, lock: str) -> None:
    (tmp_path / ".lock").write_text(lock)
    (tmp_path / "recipe.toml").write_text("[task]\nname = 'synthetic'  # mine\n")
    with pytest.raises(RunError, match=r"recipe\.toml"):
        unimp.run("synthetic", out=tmp_path, settings={**SETTINGS, "train.lr": 1e30})
    assert "# mine" in (tmp_path / "recipe.toml").read_text()


def test_a_failure_keeps_an_empty_folder_and_files_with_similar_names(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".recipe.toml.swp").write_text("of an editor")

    def fail() -> None:
        with held_folder(tmp_path / "run"):
            (tmp_path / "run" / "task.npz").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".recipe.toml.swp"]


@pytest.mark.filterwarnings("ignore:overflow")  # a tiny spread in a signed file
def test_changed_runs_are_refused_or_answer_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short form of proofs/tampered_runs.py."""
    monkeypatch.syspath_prepend(PROOFS)
    proof = runpy.run_path(str(PROOFS / "tampered_runs.py"))
    original = proof["originals"](tmp_path)
    cases = proof["chosen_cases"](proof["all_cases"](original), 150)
    outcomes = [found for _, found in proof["check"](cases, original)]
    assert len(outcomes) == 150
    assert outcomes.count("right") > 5
    assert outcomes.count("refused") > 120
