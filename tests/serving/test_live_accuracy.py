"""Accuracy and calibration from what the model predicted before each label."""

import math
import random
from pathlib import Path

import pytest

from unimp.serving.accuracy import live_accuracy, score
from unimp.serving.events import Label, Predicted, Retraction, Skip, Undo
from unimp.serving.queue import Queue
from unimp.serving.store import Store


def give(store: Store, node: str, label: str, predicted: str, **more: object) -> int:
    found = {node: Predicted(label=predicted, probability=0.75, **more)}  # type: ignore[arg-type]
    return store.write("reviewer", Label(node=node, label=label), predicted=found).version


def test_scores_are_those_of_the_definitions() -> None:
    tests = [(0.95, True), (0.92, False), (0.55, True), (1.0, True)]
    found = score(tests)
    assert (found.count, found.correct, found.accuracy) == (4, 3, 0.75)
    assert found.error == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    assert found.gap == pytest.approx((0.95 + 0.92 + 0.55 + 1.0) / 4 - 0.75)
    assert [(one.low, one.count) for one in found.bins] == [(0.5, 1), (0.9, 3)]
    expected = (3 * abs((0.95 + 0.92 + 1.0) / 3 - 2 / 3) + abs(0.55 - 1)) / 4
    assert found.calibration_error == pytest.approx(expected)
    assert math.isnan(score([]).accuracy)
    assert math.isnan(score([(0.5, True)]).error)


def test_the_standard_error_is_the_spread_of_repeated_samples() -> None:
    draw = random.Random(0)
    samples = [score([(0.8, draw.random() < 0.7) for _ in range(50)]) for _ in range(400)]
    means = [one.accuracy for one in samples]
    center = sum(means) / len(means)
    spread = math.sqrt(sum((m - center) ** 2 for m in means) / len(means))
    assert sum(one.error for one in samples) / len(samples) == pytest.approx(spread, rel=0.1)
    assert sum(one.gap_error for one in samples) / len(samples) == pytest.approx(spread, rel=0.1)


def test_only_uninformed_predictions_in_force_count_once_per_node(store: Store) -> None:
    give(store, "a", "x", "x")
    give(store, "b", "y", "x")
    give(store, "b", "x", "y")  # a correction: the truth is x, and the first prediction was x
    undone = give(store, "c", "x", "x")
    store.write("reviewer", Undo(undoes=undone))
    give(store, "d", "x", "y", informed=True)  # the run has a label for it
    store.write("reviewer", Label(node="e", label="x"))  # nothing was predicted
    give(store, "f", "x", "y")
    store.write("reviewer", Retraction(node="f"))
    found = live_accuracy(store.reader)
    assert (found.all.count, found.all.correct, found.version) == (2, 2, store.reader.head())
    store.write("reviewer", Retraction(node="a"))
    give(store, "a", "x", "y")  # the last prediction without its label counts
    found = live_accuracy(store.reader)
    assert (found.all.count, found.all.correct) == (2, 1)


def test_generations_and_the_latest_labels(store: Store) -> None:
    for number in range(6):
        give(store, f"n{number}", "x", "x" if number >= 3 else "y", generation=number % 2)
    assert live_accuracy(store.reader, last=3).all.accuracy == 1
    assert live_accuracy(store.reader, generation=1).all.count == 3
    assert live_accuracy(store.reader, generation=0, last=1).all.correct == 1


def test_labels_of_binary_tasks_are_compared_as_sets() -> None:
    assert Predicted(label=["b", "a"], probability=1.0).label == ("a", "b")


def test_the_sample_measures_accuracy_without_the_bias_of_the_ranking(tmp_path: Path) -> None:
    """The model is right on 2 of 3 nodes; the ranking offers those on which it is wrong first."""
    nodes = [f"n{number}" for number in range(300)]
    wrong = set(nodes[::3])
    ranking = sorted(nodes, key=lambda node: node not in wrong)
    right = count = 0
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        with Store(tmp_path / str(seed)) as store:
            store.people.add("reviewer", "reviewer", token=False)
            queue = Queue(store, seed=seed)
            for _ in range(110):  # in the end almost all of the wrong ones have their label
                item = queue.next("reviewer", ranking, nodes).result()
                assert item is not None
                give(store, item.node, "x", "y" if item.node in wrong else "x")
            found = live_accuracy(store.reader)
            assert found.all.accuracy < 0.2
            assert found.unanswered == 0
            right, count = right + found.random.correct, count + found.random.count
            skipped = queue.next("reviewer", [], nodes).result()
            while skipped is not None and skipped.drawn != "random":
                skipped = queue.next("reviewer", [], nodes).result()
            assert skipped is not None
            store.write("reviewer", Skip(node=skipped.node))
            assert live_accuracy(store.reader).unanswered >= 1
    assert count > 45
    assert abs(right / count - 2 / 3) < 2 * math.sqrt(2 / 9 / count)
