"""Everything that uses a trained model gives the same results on a GPU and on CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unimp import Run, UniMPClassifier, load_run
from unimp.analysis.audit import audit
from unimp.analysis.explain import explain
from unimp.config.recipe import Recipe
from unimp.inference.incremental.changes import Change
from unimp.runs.experiment import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RECIPE = Recipe(name="small").with_settings(
    ["task.name=synthetic", "task.scale=0.05", "model.width=16", "train.epochs=20", "train.lr=0.01"]
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The same weights on a GPU and on CPU."""
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    run(RECIPE.with_settings(["train.device=cuda"]), out=folder)
    return [load_run(folder, device=device) for device in ("cuda", "cpu")]


def test_scores_are_the_same(both: list[Run]) -> None:
    found, expected = (one.outputs(one.observed_labels(reveal="train")).cpu() for one in both)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_answers_that_follow_a_change_are_the_same(both: list[Run]) -> None:
    task = both[0].task
    hidden, asked = task.split.train[:5], task.split.test[:40]
    edge = torch.stack((task.graph.source[:1].long(), task.graph.target[:1].long()), 1)
    for change in (Change(), Change.hide(hidden), Change.remove_edges(edge)):
        (found,), (expected,) = (one.incremental().after([change], [asked]) for one in both)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_explanations_are_the_same(both: list[Run]) -> None:
    node = int(both[0].task.split.test[0])

    def without(one: Run) -> dict[int, float | None]:
        found = explain(
            one.incremental(),
            one.task,
            one.observed_labels(reveal="train"),
            node,
            chances=one.probabilities_of,
        )
        return {effect.node: effect.without for effect in found.labels}

    found, expected = map(without, both)
    exact = {label for label, chance in expected.items() if chance is not None}
    assert len(exact & found.keys()) >= len(exact) - 1  # the last of them may be another
    for label in exact & found.keys():
        assert found[label] == pytest.approx(expected[label], abs=1e-3)


def test_audits_are_the_same(both: list[Run]) -> None:
    known = both[0].task.split.train
    margins = []
    for one in both:
        found = audit(one.incremental(), one.task, known, chances=one.probabilities_of, folds=0)
        margins.append(torch.tensor(found["margin"].to_pylist())[torch.argsort(found.nodes)])
    torch.testing.assert_close(margins[0].cpu(), margins[1], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_the_classifier_learns_as_on_cpu(both: list[Run], regime: str) -> None:
    task = both[0].task
    known, test = task.split.train.numpy(), task.split.test.numpy()
    nodes, y = task.graph.nodes, task.labels.numpy()

    def score(device: str) -> float:
        settings = {"batch.regime": regime, "batch.parts": 2, "batch.batch_size": 32}
        model = UniMPClassifier(
            width=16, epochs=30, lr=0.01, random_state=0, device=device, settings=settings
        )
        return float(model.fit(nodes[known], y[known]).score(nodes[test], y[test]))

    on_gpu, on_cpu = score("cuda"), score("cpu")
    assert on_gpu == pytest.approx(on_cpu, abs=0.1)
    assert on_gpu > np.bincount(y[known]).max() / len(known)
