"""Scores, weights and temperatures that are not finite never become an answer."""

import contextlib
import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from unimp.analysis.predictions import predictions_table, suggestions
from unimp.cli.console import app
from unimp.data.tables.from_tables import task_from_tables
from unimp.errors import NonFiniteError, RunError, UnimpError
from unimp.graph.graph import Graph
from unimp.inference.calibration import checked_temperature
from unimp.inference.incremental.changes import Change
from unimp.inference.logits import predict_logits
from unimp.inference.reliability import MAX_TEMPERATURE
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.sklearn import UniMPClassifier
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

NODES, WIDTH, FAR = 30, 3, 29
"""Node FAR has no edges."""
OPTIONS = ["train.device=cpu", "model.width=4", "model.layers=2", "train.epochs=2"]
BAD = [math.nan, math.inf, -math.inf]


def small_task() -> Task:
    """A cycle of all nodes but one."""
    draw = torch.Generator().manual_seed(0)
    ring = torch.arange(FAR)
    graph = Graph.from_edges(
        torch.stack((ring, (ring + 1) % FAR)), x=torch.randn(NODES, WIDTH, generator=draw)
    )
    names = tuple(f"n{node}" for node in range(NODES))
    return Task(
        "ring",
        graph.symmetrize(),
        torch.arange(NODES) % 3,
        Split(torch.arange(12), torch.arange(12, 20), torch.arange(20, NODES)),
        "accuracy",
        3,
        node_names=names,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(small_task(), out=tmp_path_factory.mktemp("finite") / "run", settings=OPTIONS)


QUESTIONS: dict[str, Callable[[Run], Any]] = {
    "predict": lambda run: run.predict(reveal="train"),
    "predictions": lambda run: run.predictions(reveal="train"),
    "evaluate": lambda run: run.evaluate(),
    "audit": lambda run: run.audit(folds=0),
    "audit in parts": lambda run: run.audit(folds=3),
    "suggest": lambda run: run.suggest(3, reveal="train"),
    "explain": lambda run: run.explain("n3"),
    "smoothed": lambda run: run.smoothed().predict(),
    "incremental": lambda run: run.incremental().logits,
    "without labels": lambda run: run.incremental().without_labels,
    "logits": lambda run: predict_logits(run.model, run.task.graph, run.task.labels),
}


def with_weight(run: Run, place: int, value: float) -> Run:
    """The run with one weight replaced."""
    model = copy.deepcopy(run.model)
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    weights[place % len(weights)] = value
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    return replace(run, model=model)


def with_feature(run: Run, node: int, column: int, value: float) -> Run:
    """The run with one feature replaced."""
    assert isinstance(run.task.graph.x, torch.Tensor)
    x = run.task.graph.x.clone()
    x[node, column] = value
    return replace(run, task=run.task.with_graph(run.task.graph.with_features(x)))


def is_finite(found: Any) -> bool:
    if isinstance(found, torch.Tensor):
        return bool(found.isfinite().all())
    if isinstance(found, dict):
        return all(math.isfinite(value) for value in found.values())
    if hasattr(found, "probability"):
        return math.isfinite(found.probability)
    columns = (found[name].drop_null().to_numpy() for name in found.column_names)
    return all(bool(np.isfinite(c).all()) for c in columns if c.dtype.kind == "f")


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_gives_finite_answers_or_our_error(
    question: str, data: st.DataObject, done: Run
) -> None:
    huge = st.sampled_from([3e38, -3e38, 1e30, 1e20])
    value = data.draw(st.one_of(st.sampled_from(BAD), huge))
    weight, node = data.draw(st.integers(0, 10_000)), data.draw(st.integers(0, NODES - 1))
    in_weights = data.draw(st.booleans())
    with contextlib.suppress(UnimpError):
        found = QUESTIONS[question](
            with_weight(done, weight, value)
            if in_weights
            else with_feature(done, node, weight % WIDTH, value)
        )
        assert is_finite(found)


def test_an_answer_that_a_broken_node_cannot_reach_is_still_given(done: Run) -> None:
    spoiled = with_feature(done, FAR, 0, 3e38)
    assert spoiled.explain("n3").probability == pytest.approx(done.explain("n3").probability)


def test_a_feature_that_is_too_large_is_named_with_all_nodes_that_it_spoils(done: Run) -> None:
    with pytest.raises(NonFiniteError) as caught:
        with_feature(with_weight(done, 0, 1.0), 5, 2, 3e38).predict()
    message = str(caught.value)
    assert 5 in caught.value.nodes
    assert f"{len(caught.value.nodes)} nodes" in message
    for part in ("n5", "3e+38", "column 2"):
        assert part in message


def test_weights_that_are_not_finite_are_named(done: Run) -> None:
    name = next(iter(done.model.state_dict()))
    with pytest.raises(NonFiniteError, match=name):
        with_weight(done, 0, math.nan).predict()


@pytest.mark.parametrize("question", ["explain", "audit"])
def test_questions_about_changes_name_nodes_as_the_user_does(question: str, done: Run) -> None:
    with pytest.raises(NonFiniteError, match=r"node n\d"):
        QUESTIONS[question](with_weight(done, 0, math.nan))


def test_a_change_whose_scores_are_not_finite_is_not_committed(done: Run) -> None:
    engine = replace(done, model=copy.deepcopy(done.model)).incremental()
    before = engine.logits
    with torch.no_grad():
        for weight in engine.model.parameters():  # type: ignore[union-attr]
            weight.fill_(math.nan)
    with pytest.raises(NonFiniteError):
        engine.commit(Change.hide([3]))
    assert torch.equal(engine.logits, before)


# Files of a run


@pytest.mark.parametrize("value", BAD)
def test_outputs_that_are_not_finite_do_not_become_a_class(done: Run, value: float) -> None:
    observed = done.observed_labels()
    bad = torch.full((NODES, 3), value)
    for ask in (
        lambda: done.probabilities_of(bad),
        lambda: done.smoothed_outputs(bad, observed),
        lambda: done.smoothed().smoothed_outputs(bad, observed),
        lambda: predictions_table(done.task, bad, observed),
        lambda: suggestions(done.task, bad, observed, 1),
    ):
        with pytest.raises(NonFiniteError, match="30 of 30 rows"):
            ask()


@pytest.fixture
def copied(done: Run, tmp_path: Path) -> Path:
    assert done.folder is not None
    shutil.copytree(done.folder, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("value", BAD)
def test_weights_that_are_not_finite_are_refused_when_a_run_is_loaded(
    value: float, copied: Path
) -> None:
    tensors = load_file(copied / "model.safetensors")
    name = sorted(tensors)[2]
    tensors[name].view(-1)[0] = value
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(RunError):
        load_run(copied)
    for command in (["predict", "--out", "made.csv"], ["evaluate"], ["explain", "n3"]):
        name_of, *rest = command
        result = CliRunner().invoke(app, [name_of, str(copied), *rest])
        assert result.exit_code == 1
    assert not Path("made.csv").exists()


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, math.nan, math.inf, 1e-30, 1e30, "2", None])
def test_a_temperature_that_no_calibration_finds_is_refused(
    value: Any, copied: Path, done: Run
) -> None:
    with pytest.raises(RunError, match="temperature"):
        checked_temperature(value)
    path = copied / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["calibration"]["temperature"] = value
    path.write_text(json.dumps(metrics))
    with pytest.raises(RunError):
        load_run(copied)
    with pytest.raises(RunError, match="temperature"):
        replace(done, metrics=metrics)


@pytest.mark.parametrize("value", [1, 1.0, 1 / MAX_TEMPERATURE, MAX_TEMPERATURE, 0.7])
def test_a_temperature_that_a_calibration_finds_is_accepted(value: float) -> None:
    assert checked_temperature(value) == value


# Later nodes, and the classifier


def test_a_later_node_with_a_huge_feature_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    nodes = {
        "id": [f"n{i}" for i in range(40)],
        "age": [float(i % 7) for i in range(40)],
        "kind": [["a", "b"][i % 2] for i in range(40)],
    }
    edges = {"source": [f"n{i}" for i in range(39)], "target": [f"n{i + 1}" for i in range(39)]}
    task = task_from_tables(nodes, edges, label="kind", features={"age": "numeric"}, directed=False)
    run(task, out=tmp_path / "run", settings=OPTIONS)
    (tmp_path / "nodes.csv").write_text("id,age\nm1,3e38\n")
    (tmp_path / "edges.csv").write_text("source,target\nm1,n1\n")
    out = tmp_path / "made.csv"
    later = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    result = CliRunner().invoke(
        app, ["predict", str(tmp_path / "run"), *later, "--reveal", "train", "--out", str(out)]
    )
    assert result.exit_code == 1
    assert isinstance(result.exception, UnimpError)
    for part in ("nodes.csv", "age"):
        assert part in str(result.exception)
    assert not out.exists()


def test_the_classifier_refuses_scores_that_are_not_finite() -> None:
    task = small_task()
    classifier = UniMPClassifier(layers=1, width=4, epochs=1, random_state=0, device="cpu")
    classifier.fit(task.graph.nodes[:20], task.labels[:20].numpy())
    with torch.no_grad():
        next(classifier.run_.model.parameters()).fill_(math.nan)
    for question in (classifier.predict, classifier.predict_proba):
        with pytest.raises(NonFiniteError, match="nodes"):
            question(task.graph)
