"""Predictions: what their table holds, under whose names, and that known labels are kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import unimp
from unimp.analysis import predictions
from unimp.analysis.predictions import (
    keep_observed,
    known_in_neighbors,
    predictions_table,
    suggestions,
)
from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.02",
        "model.width=8",
        "model.layers=2",
        "train.epochs=5",
        "train.lr=0.01",
        "train.device=cpu",
    ]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(RECIPE, seed=3, out=tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="module")
def named(made: Run) -> Run:
    """The same run with names of nodes and classes, and one unknown label."""
    labels = made.task.labels.clone()
    labels[made.task.split.test[0]] = -1
    task = replace(
        made.task,
        labels=labels,
        node_names=tuple(f"package-{i}" for i in range(200)),
        class_names=tuple("abcdefghij"),
    )
    return replace(made, task=task)


def test_a_label_that_was_an_input_is_kept_and_the_rest_is_predicted(made: Run) -> None:
    table = made.predictions().to_arrow().to_pydict()
    chances = made.predict()
    assert table["node"] == list(range(200))
    seen = torch.tensor(table["observed"])
    assert torch.equal(torch.nonzero(seen).squeeze(1), made.task.split.train.sort().values)
    own = made.probabilities_of(made.outputs(made.observed_labels(reveal="train"))).argmax(1)
    assert not torch.equal(own[seen], made.task.labels[seen])  # the model alone would not do
    expected = torch.where(seen, made.task.labels, own)
    assert table["prediction"] == [str(c) for c in expected.tolist()]
    assert torch.equal(chances.argmax(1), expected)
    assert table["label"] == [str(c) for c in made.task.labels.tolist()]
    for name in ("train", "val", "test"):
        nodes = [node for node, of in zip(table["node"], table["set"], strict=True) if of == name]
        assert nodes == sorted(getattr(made.task.split, name).tolist())


def test_only_predictions_have_a_confidence_and_it_is_their_probability(made: Run) -> None:
    table, chances = made.predictions().to_arrow().to_pydict(), made.predict()
    for node, confidence in enumerate(table["confidence"]):
        if table["observed"][node]:
            assert confidence is None
            assert table[f"p_{table['label'][node]}"][node] == 1
        else:
            assert confidence == float(chances[node].max())
            assert confidence == table[f"p_{table['prediction'][node]}"][node]


def test_the_folder_and_the_table_agree(made: Run) -> None:
    assert made.folder is not None
    kept = pyarrow.parquet.read_table(made.folder / "predictions.parquet")
    assert kept.equals(made.predictions().to_arrow())
    assert kept.equals(load_run(made.folder, device="cpu").predictions().to_arrow())


def test_predictions_have_the_names_of_nodes_and_classes(named: Run, tmp_path: Path) -> None:
    table = named.predictions()
    table.write(tmp_path / "p.parquet")
    read = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert read["node"][7] == "package-7"
    assert read["label"][int(named.task.split.test[0])] is None
    assert set(read["prediction"]) <= set("abcdefghij")
    assert read["p_c"] == named.predict()[:, 2].tolist()
    table.write(tmp_path / "p.csv")
    assert pyarrow.csv.read_csv(tmp_path / "p.csv").to_pydict()["node"] == read["node"]


def test_labels_given_by_name_equal_labels_given_as_a_tensor(named: Run, tmp_path: Path) -> None:
    nodes = named.task.split.test[:3].tolist()
    by_name = {f"package-{node}": "c" for node in nodes}
    by_place = torch.full_like(named.task.labels, -1)
    by_place[nodes] = 2
    expected = named.predict(by_place)
    assert torch.equal(named.predict(by_name), expected)
    assert not torch.equal(expected, named.predict())
    file = tmp_path / "more.csv"
    file.write_text("node,label\n" + "".join(f"package-{node},c\n" for node in nodes))
    assert torch.equal(named.predict(file), expected)
    table = named.predictions(by_name).to_arrow().to_pydict()
    assert [table["prediction"][node] for node in nodes] == ["c"] * 3
    assert [table["observed"][node] for node in nodes] == [True] * 3


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"package-300": "c"}, "no node 'package-300'; did you mean 'package-30'"),
        ({"package-3": "k"}, "no class 'k'; choose one of a, b, c"),
        ({1.5: "c"}, "node 1.5 is neither a name nor a number"),
        ({3: "c"}, "no node 3; none of the 200 names .* use a tensor"),
        ({"package-3": 2}, "no class 2; choose one of a, b, c"),
    ],
)
def test_an_unknown_name_is_an_error(named: Run, labels: dict[str, str], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        named.predict(labels)


def test_names_are_refused_where_there_are_none(made: Run) -> None:
    with pytest.raises(TaskError, match=r"no node 'git'; there are no names; numbers are 0\.\.199"):
        made.predict({"git": 1})


def test_predictions_of_binary_tasks_have_one_column_per_task() -> None:
    task = synthetic_task(num_nodes=20, num_edges=30, num_classes=2, multilabel_tasks=3)
    task = replace(task, class_names=("red", "round", "ripe"))
    chances = torch.full((20, 3), 0.1)
    chances[4] = torch.tensor([0.9, 0.2, 0.8])
    observed = torch.full_like(task.labels, -1)
    observed[5, 1] = 1  # the other two entries of node 5 are not known
    table = (
        predictions_table(task, keep_observed(chances, observed), observed).to_arrow().to_pydict()
    )
    assert table["prediction"][4] == "red;ripe"
    assert table["prediction"][5] == "round"
    assert table["prediction"][6] == ""
    assert table["p_round"][4:6] == [pytest.approx(0.2), 1.0]
    assert table["p_red"][5] == pytest.approx(0.1)
    assert table["observed"].count(True) == 1
    # The share of entries that is expected to be right, of those that were not observed.
    assert table["confidence"][4] == pytest.approx((0.9 + 0.8 + 0.8) / 3)
    assert table["confidence"][5] == pytest.approx(0.9)


def test_confidence_in_binary_tasks_equals_suggestions_and_is_null_for_observed_nodes() -> None:
    task = synthetic_task(num_nodes=20, num_edges=30, num_classes=2, multilabel_tasks=3)
    chances, observed = torch.rand(20, 3), torch.full_like(task.labels, -1)
    observed[5] = task.labels[5].clamp(min=0)
    found = predictions_table(task, keep_observed(chances, observed), observed)
    confidence = dict(enumerate(found["confidence"].to_pylist()))
    assert confidence.pop(5) is None
    asked = suggestions(task, chances, observed, 5).to_pylist()
    assert asked
    for row in asked:
        assert confidence[row["node"]] == pytest.approx(row["confidence"])


def test_names_in_a_cell_use_the_separator_of_the_tables() -> None:
    nodes = {
        "id": list("abcdef"),
        "label": ["red wine|white", "white", "red wine", "beer", "beer|white", ""],
    }
    edges = {"source": list("abcde"), "target": list("bcdef")}
    task = unimp.task_from_tables(nodes, edges, label_separator="|", features={})
    chances = torch.zeros(6, 3)
    chances[5] = torch.tensor([0.1, 0.9, 0.8])
    table = predictions_table(task, chances, torch.full_like(task.labels, -1))
    assert table["prediction"].to_pylist()[5] == "red wine|white"


def test_a_suffix_may_be_in_capitals(made: Run, tmp_path: Path) -> None:
    made.predictions().write(tmp_path / "P.CSV")
    assert (tmp_path / "P.CSV").read_bytes().startswith(b'"node","prediction"')


def test_known_neighbors_are_counted_once_each_and_without_the_node_itself() -> None:
    edges = torch.tensor([[1, 1, 2, 3, 0, 0], [0, 0, 0, 0, 0, 3]])  # 1 → 0 twice, 0 → 0
    graph = Graph.from_edges(edges, num_nodes=4)
    known = torch.tensor([True, True, True, False])
    assert known_in_neighbors(graph, known).tolist() == [2, 0, 0, 1]


def test_known_neighbors_include_given_labels(
    made: Run, random_graph: Callable[..., Graph]
) -> None:
    source, target = made.task.graph.source, made.task.graph.target
    fresh = next(n for n in made.task.split.test.tolist() if bool((target[source == n] != n).any()))
    node = int(target[(source == fresh) & (target != fresh)][0])
    before = made.predictions().to_arrow().to_pydict()["known_neighbors"]
    after = made.predictions({fresh: 0}).to_arrow().to_pydict()["known_neighbors"]
    assert after[node] == before[node] + 1


def test_very_many_probabilities_are_left_out_unless_requested(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "p_0" in made.predictions().column_names
    assert "p_0" not in made.predictions(probabilities=False).column_names
    monkeypatch.setattr(predictions, "MAX_ENTRIES", 1999)
    assert "p_0" not in made.predictions().column_names
    assert "p_0" in made.predictions(probabilities=True).column_names


def test_a_run_smoothed_later_is_one_that_was_smoothed_from_the_start(made: Run) -> None:
    expected = run(RECIPE.with_settings(["smooth.form=correct-and-smooth"]), seed=3)
    smoothed = made.smoothed()
    later = {int(made.task.split.test[0]): 1}
    assert torch.equal(smoothed.predict(later), expected.predict(later))
    assert smoothed.metrics["calibration"] == expected.metrics["calibration"]
    assert not torch.equal(smoothed.predict(later), made.predict(later))
