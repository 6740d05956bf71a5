"""The run of `unimp serve --demo`, which is part of the package."""

import json
import zipfile
from pathlib import Path

import pytest

import unimp
from unimp.errors import RunError
from unimp.serving import demo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    demo.unpack(folder)
    return folder


def test_it_loads_predicts_and_has_the_stored_score(folder: Path) -> None:
    run = unimp.load_run(folder / demo.RUN)
    stored = run.metrics["scores"]["train"]
    assert stored["test"] > 0.69
    predicted = run.predict(reveal="train").argmax(1)
    test = run.task.split.test
    right = (predicted[test] == run.task.labels[test]).double().mean()
    assert float(right) == pytest.approx(stored["test"], abs=2 / len(test))


def test_its_classes_are_in_the_order_of_their_prices(folder: Path) -> None:
    names = unimp.load_run(folder / demo.RUN).task.class_names or ()
    prices = [int(name.split()[0].strip("$").replace(",", "")) for name in names]
    assert prices == sorted(prices)
    assert len(prices) == 5


def test_its_table_belongs_to_it(folder: Path) -> None:
    run = unimp.load_run(folder / demo.RUN)
    assert Path(run.recipe.tables.nodes) == folder / demo.NODES
    lines = (folder / demo.NODES).read_text(encoding="utf-8").splitlines()
    assert len(lines) - 1 == len(run.task.labels)


def test_it_is_small_and_names_no_folder_of_the_machine_that_made_it() -> None:
    assert demo.BUNDLE.stat().st_size < 1_300_000
    manifest = json.loads(zipfile.ZipFile(demo.BUNDLE).read("run/manifest.json"))
    assert manifest["paths"] == {}
    assert manifest["command"] == ["scripts/build-demo"]


def test_it_is_unpacked_once_and_an_incomplete_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (demo.demo_folder() / demo.RUN).mkdir(parents=True)
    (demo.demo_folder() / demo.RUN / "model.safetensors").write_text("incomplete")
    run = demo.demo_run(lambda line: None)
    assert unimp.load_run(run).takes_labels
    (run / "mine").write_text("kept")
    assert demo.demo_run(lambda line: None) == run
    assert (run / "mine").exists()
    assert [path.name for path in demo.demo_folder().parent.iterdir()] == [demo.demo_folder().name]


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unimp").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunError, match="XDG_CACHE_HOME"):
        demo.demo_run(lambda line: None)
