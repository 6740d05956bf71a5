"""Suggestions: uncertain nodes among uncertain neighbors, spread out, and never known nodes."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest
import torch
from typer.testing import CliRunner

from unimp.analysis.predictions import _why
from unimp.analysis.suggest import (
    Suggestion,
    chance_of_error,
    suggest_nodes,
    uncertainty,
    unknown_nodes,
)
from unimp.cli import app
from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError
from unimp.graph.graph import Graph
from unimp.inference.correct_and_smooth import smoothing_in_words
from unimp.model.registry import build_model
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run

PROOF = Path(__file__).parents[2] / "proofs" / "suggest.py"
SETTINGS = [
    "task.name=synthetic",
    "task.scale=0.05",
    "model.width=16",
    "train.epochs=30",
    "train.lr=0.01",
    "train.device=cpu",
]


def undirected(*pairs: tuple[int, int], nodes: int) -> Graph:
    edges = torch.tensor([*pairs, *[(b, a) for a, b in pairs]]).T
    return Graph.from_edges(edges, num_nodes=nodes)


def names(graph: Graph, error: list[float], number: int, known: tuple[int, ...] = ()) -> list[int]:
    unknown = torch.ones(graph.num_nodes, dtype=torch.bool)
    unknown[list(known)] = False
    return [s.node for s in suggest_nodes(graph, torch.tensor(error), unknown, number)]


def test_an_uncertain_node_among_uncertain_neighbors_comes_first() -> None:
    graph = undirected((0, 1), (2, 3), (4, 5), nodes=6)
    # Uncertain next to uncertain; uncertain next to certain; certain next to certain.
    assert names(graph, [0.7, 0.6, 0.7, 0.1, 0.1, 0.1], 1) == [0]


def test_known_nodes_are_neither_suggested_nor_worth_reaching() -> None:
    graph = undirected((0, 1), (2, 3), nodes=4)
    error = [0.8, 0.8, 0.5, 0.5]
    assert names(graph, error, 1) == [0]
    assert names(graph, error, 1, known=(1,)) == [2]  # 0 only reaches a known node
    assert 1 not in names(graph, error, 4, known=(1,))


def test_nodes_near_an_earlier_suggestion_count_less() -> None:
    # Two triangles, the second a little less uncertain: one suggestion for each before a second.
    triangles = ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3))
    order = names(undirected(*triangles, nodes=6), [0.6, 0.6, 0.6, 0.55, 0.55, 0.55], 6)
    assert order[:2] == [0, 3]  # of equals, the lower number
    assert sorted(order) == [0, 1, 2, 3, 4, 5]


def test_nodes_that_reach_no_others_come_last_by_their_own_uncertainty() -> None:
    graph = undirected((0, 1), nodes=4)
    # Once 0 is chosen, 1 reaches no unknown node any more.
    assert names(graph, [0.1, 0.1, 0.5, 0.9], 4) == [0, 3, 2, 1]


def test_lazy_greedy_choices_equal_evaluating_every_node_again() -> None:
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edges(torch.randint(60, (2, 240), generator=generator), num_nodes=60)
    error = torch.rand(60, generator=generator).double()
    unknown = torch.rand(60, generator=generator) < 0.8
    left = torch.where(unknown, error, 0.0)
    first, damping = left.clone(), 1 / (1 + graph.in_degree).sqrt().double()
    out = torch.bincount(graph.source.long(), minlength=60)
    expected: list[int] = []
    for _ in range(20):
        worth = torch.full((60,), -1.0, dtype=torch.float64)
        near = [sorted(set(graph.target[graph.source == i].tolist()) - {i}) for i in range(60)]
        for i in range(60):
            if unknown[i] and i not in expected:
                worth[i] = first[i] ** 2 / (1 + out[i]) * (left * damping)[near[i]].sum()
        best = int(worth.argmax())
        expected.append(best)
        left[near[best]] *= 1 - first[best] ** 2 / (1 + out[best]) * damping[near[best]]
        left[best] = 0
    assert [s.node for s in suggest_nodes(graph, error, unknown, 20)] == expected


def test_more_suggestions_than_nodes_give_each_node_once() -> None:
    graph = undirected((0, 1), (1, 2), nodes=3)
    assert sorted(names(graph, [0.2, 0.3, 0.4], 10)) == [0, 1, 2]


def test_a_large_graph_takes_no_longer_than_reading_it() -> None:
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edges(torch.randint(100_000, (2, 500_000), generator=generator))
    error = torch.rand(graph.num_nodes, generator=generator)
    found = suggest_nodes(graph, error, torch.ones(graph.num_nodes, dtype=torch.bool), 200)
    assert len({s.node for s in found}) == 200
    assert error[[s.node for s in found]].mean() > 0.8


def test_nodes_without_a_label_are_suggested_and_in_a_benchmark_the_test_set() -> None:
    task = synthetic_task(num_nodes=40, num_edges=80, num_classes=3)
    nothing = torch.full_like(task.labels, -1)
    assert torch.nonzero(unknown_nodes(task, nothing)).squeeze(1).tolist() == sorted(
        task.split.test.tolist()
    )
    labels, later = task.labels.clone(), nothing.clone()
    two = task.split.test[:2]
    labels[two] = -1
    later[two[0]] = 1
    own = replace(task, labels=labels)
    assert torch.nonzero(unknown_nodes(own, nothing)).squeeze(1).tolist() == sorted(two.tolist())
    assert torch.nonzero(unknown_nodes(own, later)).squeeze(1).tolist() == [int(two[1])]
    removed = task.split.train[:1]
    for some in (task, own):
        before, after = unknown_nodes(some, later), unknown_nodes(some, later, removed)
        assert torch.nonzero(before != after).squeeze(1).tolist() == removed.tolist()


def test_uncertainty_ranges_from_certain_to_uniform() -> None:
    chances = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    assert uncertainty(chances, multilabel=False).tolist() == pytest.approx([0, 1])
    assert chance_of_error(chances, multilabel=False).tolist() == pytest.approx([0, 2 / 3])
    binary = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert uncertainty(binary, multilabel=True).tolist() == pytest.approx([0, 1], abs=1e-6)
    assert chance_of_error(binary, multilabel=True).tolist() == [0, 0.5]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "one"
    return run(Recipe(name="small").with_settings(SETTINGS), out=out)


def test_a_table_of_suggestions_filled_in_is_a_label_file(
    made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = CliRunner().invoke(app, ["suggest", str(made.folder), "-n", "12"])
    assert printed.exit_code == 0, printed.output
    assert "… and 2 more: suggestions.csv" in printed.output
    table = pyarrow.csv.read_csv(tmp_path / "suggestions.csv")
    assert table.column_names == made.suggest(12).column_names
    assert table["rank"].to_pylist() == list(range(1, 13))
    rows = table.to_pylist()
    test = set(made.task.split.test.tolist())
    chances = made.smoothed_if_better().predict()
    for row in rows:
        assert row["node"] in test
        assert row["confidence"] == pytest.approx(float(chances[row["node"]].max()))
        assert f"{row['prediction']} (" in row["why"]
    lines = (tmp_path / "suggestions.csv").read_text().splitlines()
    node = rows[1]["node"]
    lines[2] = lines[2].replace(f"{node},,", f"{node},3,")  # one is answered, the rest left empty
    (tmp_path / "suggestions.csv").write_text("\n".join(lines))
    after = load_run(made.folder or "", device="cpu").predictions("suggestions.csv")
    assert sum(after["observed"].to_pylist()) == len(made.task.split.train) + 1
    assert after["prediction"].to_pylist()[node] == "3"
    again = made.suggest(12, "suggestions.csv")["node"].to_pylist()
    assert node not in again
    with pytest.raises(RunError, match="ask for at least 1"):
        made.suggest(0)


def test_labels_that_were_filled_in_are_not_overwritten(
    made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["suggest", str(made.folder), "-n", "3"]
    assert CliRunner().invoke(app, command).exit_code == 0
    command.append("--force")
    assert CliRunner().invoke(app, command).exit_code == 0  # nothing was filled in
    empty = CliRunner().invoke(app, ["predict", str(made.folder), "--labels", "suggestions.csv"])
    assert empty.exit_code == 0
    assert "no label is filled in: suggestions.csv" in empty.output
    lines = Path("suggestions.csv").read_text().splitlines()
    node = lines[1].split(",")[1]
    lines[1] = lines[1].replace(f"{node},,", f"{node},2,")
    Path("suggestions.csv").write_text("\n".join(lines))
    with pytest.raises(RunError, match="1 labels that were filled in"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert Path("suggestions.csv").read_text() == "\n".join(lines)


def test_smoothing_is_chosen_by_validation_and_never_by_test(
    made: Run,
) -> None:
    chosen = made.smoothed_if_better()
    found = chosen.metrics["smoothing"]
    alone, smoothed = (one.evaluate()["val"] for one in (made, made.smoothed()))
    assert found["val"] == {"none": alone, "correct-and-smooth": smoothed}
    assert found["smoothed"] == (smoothed > alone)
    assert chosen.recipe.smooth.form == ("correct-and-smooth" if found["smoothed"] else "none")
    assert alone != smoothed

    # Validation labels that the other form meets: the choice is the other one.
    for form, other in (("none", made), ("correct-and-smooth", made.smoothed())):
        labels, val = made.task.labels.clone(), made.task.split.val
        labels[val] = other.outputs(made.observed_labels(reveal="train"))[val].argmax(1)
        labels[made.task.split.test] = 0
        again = replace(made, task=replace(made.task, labels=labels)).smoothed_if_better()
        assert again.recipe.smooth.form == form
        assert again.metrics["smoothing"]["val"][form] == 1.0


def test_if_smoothing_cannot_be_compared_the_run_does_not_change_and_states_why(made: Run) -> None:
    few = replace(made.task.split, val=made.task.split.val[:29])
    propagation = made.recipe.with_settings(["model.name=label-propagation"])
    propagated = build_model(propagation.model, made.task.sizes)
    smooth = made.recipe.with_settings(["smooth.form=smooth"])
    for odd, why in (
        (replace(made, task=replace(made.task, split=few)), "29 validation labels"),
        (replace(made, recipe=propagation, model=propagated), "label propagation"),
        (replace(made, recipe=smooth), "smooths already"),
    ):
        chosen = odd.smoothed_if_better()
        found = chosen.metrics["smoothing"]
        assert chosen.recipe == odd.recipe
        assert not found["smoothed"]
        assert why in smoothing_in_words(found, "accuracy")


def test_the_command_states_the_choice_and_passes_it_to_the_next_command(
    made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def printed(*more: str) -> list[str]:
        done = CliRunner().invoke(app, ["suggest", str(made.folder), "-n", "3", "--force", *more])
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    found = made.smoothed_if_better().metrics["smoothing"]
    alone, smoothed = (f"{100 * value:.2f} %" for value in found["val"].values())
    assert found["smoothed"]
    *_, chosen, then = printed()
    assert chosen == (
        f"chosen with Correct & Smooth: validation accuracy {smoothed}, the model alone {alone}"
    )
    out = "--out suggestions-predictions.csv"
    assert then.endswith(f"--labels suggestions.csv --smooth {out}")
    assert then == printed("--smooth")[-1]
    plain = printed("--no-smooth")
    assert not any("validation" in line for line in plain)
    assert plain[-1].endswith(f"--labels suggestions.csv {out}")
    *_, chosen = printed("--out", "again.csv")
    assert chosen.endswith("--labels again.csv --smooth --out again-predictions.csv")


def test_suggestions_of_a_model_without_label_inputs_state_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [*SETTINGS, "model.inputs=X,A", "train.epochs=2"]
    run(Recipe(name="small").with_settings(settings), out=tmp_path / "run")
    command = ["suggest", "run", "-n", "3", "--no-smooth"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "takes no labels as inputs" in done.output
    assert "unimp predict run" not in done.output


def test_suggestions_for_binary_tasks_count_uncertain_tasks() -> None:
    settings = ["task.name=synthetic-proteins", "task.scale=0.0005", "train.epochs=2"]
    done = run(Recipe(name="small").with_settings([*SETTINGS, *settings, "model.width=4"]))
    rows = done.suggest(3).to_pylist()
    assert len(rows) == 3
    found = done.smoothed_if_better().metrics["smoothing"]
    assert "has binary tasks" in smoothing_in_words(found, "rocauc")
    assert all("tasks; " in row["why"] and 0.5 <= row["confidence"] <= 1 for row in rows)


def test_suggested_labels_raise_accuracy_more_than_random_ones() -> None:
    """The short form of proofs/suggest.py, on a generated graph in which neighbors are alike."""
    proof: dict[str, Any] = runpy.run_path(str(PROOF))
    task = synthetic_task(
        num_nodes=2000,
        num_edges=8000,
        num_classes=5,
        num_features=16,
        feature_signal=1.0,
        homophily=0.75,
        split_shares=(0.3, 0.1, 0.6),
        seed=3,
    )
    settings = ["model.width=16", "train.epochs=60", "train.lr=0.01", "train.eval_every=5"]
    row = proof["one"](run(task, settings=[*settings, "train.device=cpu"]), 100, 3)
    for found in row["forms"].values():
        assert found["gain_suggested"] > max(0.0, found["gain_random"])
        assert 1200 - 400 <= found["scored"] < 1100
    best = max(row["validation"], key=row["validation"].__getitem__)
    assert row["chosen"] == best
    means = proof["summary"]([row, row])
    assert set(means) == {"chosen", "none", "correct-and-smooth"}
    for form, chosen in (("chosen", best), ("none", "none")):
        found = row["forms"][chosen]["difference"]
        assert means[form]["difference"]["mean"] == pytest.approx(found)
        assert means[form]["seeds_above_random"] == "2 of 2"


@pytest.mark.parametrize(
    ("proof", "name"), [("audit", "command"), ("suggest", "command"), ("kill", "as_given")]
)
def test_a_proof_records_its_command_without_the_folders_of_a_machine(
    proof: str, name: str
) -> None:
    command = runpy.run_path(str(PROOF.with_stem(proof)))[name]
    given = ["--seeds", "1", "--out", "/of/mine/a.json", "--weights=/of/mine/w/", "here/too"]
    printed = f"python proofs/{proof}.py"
    assert command([]) == printed
    assert command(given) == f"{printed} --seeds 1 --out a.json --weights=w/ here/too"


@pytest.mark.parametrize(
    ("neighbors", "unsure", "words"),
    [
        (0, 0, "it has no unknown neighbors"),
        (1, 1, "its unknown neighbor is uncertain"),
        (1, 0, "its unknown neighbor is certain"),
        (3, 1, "1 of its 3 unknown neighbors is uncertain"),
        (3, 2, "2 of its 3 unknown neighbors are uncertain"),
    ],
)
def test_the_reason_of_a_suggestion_names_its_neighbors(
    neighbors: int, unsure: int, words: str
) -> None:
    task = synthetic_task(num_nodes=20, num_edges=40, num_classes=2)
    one = Suggestion(node=0, worth=0.5, neighbors=neighbors, unsure=unsure, beside=None)
    assert (
        _why(one, torch.tensor([0.25, 0.75]), ["a", "b"], task) == f"b (75 %) or a (25 %); {words}"
    )
