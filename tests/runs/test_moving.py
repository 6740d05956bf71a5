"""A project that is moved as a whole continues to work, and other data is recognized."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import unimp
from unimp.errors import RunError
from unimp.runs.folder.files import files_behind

SETTINGS: dict[str, Any] = {
    "model.width": 4,
    "model.layers": 1,
    "train.epochs": 3,
    "train.device": "cpu",
    "train.checkpoint_every": 1e-9,
}
NAMES = [f"n{i}" for i in range(30)]


def write_tables(folder: Path, names: list[str], classes: tuple[str, str] = ("red", "blue")) -> str:
    folder.mkdir(exist_ok=True)
    rows = [f"{name},{i % 7},{classes[i % 2] if i % 3 else ''}" for i, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id,age,label", *rows]) + "\n")
    ends = [f"{names[i]},{names[(7 * i + 3) % 30]}" for i in range(30)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *ends]) + "\n")
    (folder / "recipe.toml").write_text(
        '[tables]\nnodes = "nodes.csv"\nedges = "edges.csv"\nlabel = "label"\n'
        'features = { age = "numeric" }\n'
    )
    return str(folder / "recipe.toml")


def refuse(epoch: Any) -> None:
    raise AssertionError("trained again")


def test_a_finished_run_of_tables_is_found_after_the_project_was_moved(tmp_path: Path) -> None:
    recipe = write_tables(tmp_path / "here", NAMES)
    made = unimp.run(recipe, out=tmp_path / "here" / "runs" / "x", settings=SETTINGS)
    before = made.predictions().to_pylist()
    (tmp_path / "here").rename(tmp_path / "there")
    folder = tmp_path / "there" / "runs" / "x"
    assert unimp.load_run(folder).predictions().to_pylist() == before
    moved = str(tmp_path / "there" / "recipe.toml")
    again = unimp.run(moved, out=folder, settings=SETTINGS, on_epoch=refuse)
    assert again.predictions().to_pylist() == before


def test_a_run_of_a_file_is_found_after_it_was_moved_with_or_without_the_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "here").mkdir()
    unimp.save_npz(unimp.load_task("synthetic", scale=0.02), tmp_path / "here" / "mine.npz")
    made = unimp.run(
        str(tmp_path / "here" / "mine.npz"), out=tmp_path / "here" / "run", settings=SETTINGS
    )
    before = made.predict().tolist()
    alone = Path(shutil.copytree(tmp_path / "here" / "run", tmp_path / "alone"))
    assert unimp.load_run(alone).predict().tolist() == before
    (tmp_path / "here").rename(tmp_path / "there")
    assert unimp.load_run(tmp_path / "there" / "run").predict().tolist() == before
    again = unimp.run(
        str(tmp_path / "there" / "mine.npz"),
        out=tmp_path / "there" / "run",
        settings=SETTINGS,
        on_epoch=refuse,
    )
    assert again.predict().tolist() == before


@pytest.mark.parametrize("kind", ["tables", "file"])
def test_an_unfinished_run_resumes_after_the_project_was_moved(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unimp.training.checkpoint.SHARE", 0)  # a checkpoint after every step
    recipe = write_tables(tmp_path / "here", NAMES)
    if kind == "file":
        recipe = str(tmp_path / "here" / "mine.npz")
        unimp.save_npz(unimp.load_task("synthetic", scale=0.02), Path(recipe))
    whole = unimp.run(recipe, out=tmp_path / "whole", settings=SETTINGS)

    def stop(epoch: Any) -> None:
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unimp.run(recipe, out=tmp_path / "here" / "run", settings=SETTINGS, on_epoch=stop)
    (tmp_path / "here").rename(tmp_path / "there")
    recipe = recipe.replace("here", "there")
    seen: list[int] = []
    resumed = unimp.run(
        recipe,
        out=tmp_path / "there" / "run",
        settings=SETTINGS,
        on_epoch=lambda epoch: seen.append(epoch.epoch),
    )
    assert len(seen) < 3
    assert resumed.predict().tolist() == whole.predict().tolist()


@pytest.mark.parametrize("kind", ["ids", "classes"])
def test_swapped_ids_or_class_names_are_other_data(tmp_path: Path, kind: str) -> None:
    """The graph of numbers stays the same, but predictions would stand under wrong names."""
    recipe = write_tables(tmp_path / "here", NAMES)
    unimp.run(recipe, out=tmp_path / "run", settings=SETTINGS)
    if kind == "ids":
        write_tables(tmp_path / "here", ["n1", "n0", *NAMES[2:]])
    else:
        write_tables(tmp_path / "here", NAMES, ("green", "blue"))
    with pytest.raises(RunError, match="other data"):
        unimp.run(recipe, out=tmp_path / "run", settings=SETTINGS)


def test_another_file_is_other_data_even_if_the_options_are_the_same(tmp_path: Path) -> None:
    for name, scale in (("a", 0.02), ("b", 0.03)):
        unimp.save_npz(unimp.load_task("synthetic", scale=scale), tmp_path / f"{name}.npz")
    unimp.run(str(tmp_path / "a.npz"), out=tmp_path / "run", settings=SETTINGS)
    with pytest.raises(RunError, match="other data"):
        unimp.run(str(tmp_path / "b.npz"), out=tmp_path / "run", settings=SETTINGS)


def test_the_tables_of_a_run_are_protected_after_only_its_folder_was_moved(tmp_path: Path) -> None:
    recipe = write_tables(tmp_path / "here", NAMES)
    unimp.run(recipe, out=tmp_path / "here" / "runs" / "x", settings=SETTINGS)
    (tmp_path / "here" / "runs" / "x").rename(tmp_path / "alone")
    assert tmp_path / "here" / "nodes.csv" in files_behind(tmp_path / "alone")
