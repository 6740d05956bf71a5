"""Accuracy and calibration from what the model predicted before each label."""

import math
import random
from pathlib import Path

import pytest
from event_reference import Reference

from unimp.serving.accuracy import live_accuracy, score
from unimp.serving.events import Label, Predicted, Retraction, Skip, Undo, Withdrawal, Write
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


def test_only_random_items_count_for_the_figure_without_bias(store: Store) -> None:
    """Nodes of the ranking, and labels without the queue, are not part of it."""
    queue = Queue(store, seed=1)
    nodes = [f"n{number}" for number in range(40)]
    random_items = []
    for _ in range(20):
        item = queue.next("reviewer", nodes, nodes).result()
        assert item is not None
        give(store, item.node, "x", "x" if item.drawn == "random" else "y")
        random_items += [item.node] if item.drawn == "random" else []
    sampled = {row[0] for row in store.reader.rows("select node from sample")}
    for node in sorted(set(nodes) - sampled):
        give(store, node, "x", "y")
    found = live_accuracy(store.reader)
    assert len(random_items) == 2
    assert set(random_items) <= sampled
    assert found.random.count == len(sampled & set(nodes))
    assert found.all.count == len(nodes)
    right = sum(node in random_items for node in sampled)
    assert (found.random.correct, found.all.correct) == (right, 2)
    store.write("reviewer", Retraction(node=random_items[0]))
    found = live_accuracy(store.reader)
    assert (found.random.correct, found.unanswered) == (right - 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_labels_gives_the_figures_of_the_definition(
    seed: int, store: Store
) -> None:
    """The last prediction of each node that is in force and uninformed, against its label now."""
    draw, reference = random.Random(seed), Reference()
    queue, nodes = Queue(store, seed=seed), [f"n{number}" for number in range(6)]
    predictions: dict[int, Predicted] = {}
    for _ in range(60):
        node, kind = draw.choice(nodes), draw.random()
        if kind < 0.1:
            queue.next("reviewer", [], nodes).result()
            continue
        write: Write = Label(node=node, label=draw.choice("xy"), source=draw.choice(["a", "b"]))
        if kind > 0.8:
            write = Retraction(node=node)
        elif kind > 0.7 and reference.events:
            write = Undo(undoes=draw.randrange(len(reference.events)) + 1)
        elif kind > 0.67:
            write = Withdrawal(withdrawn="a")
        if reference.refusal("reviewer", write, None, None) is not None:
            continue
        given = Predicted(
            label=draw.choice("xy"), probability=draw.uniform(0.5, 1), informed=draw.random() < 0.2
        )
        had_label = reference.labels().get(node, (None,))[0] is not None
        version = store.write("reviewer", write, predicted={node: given}).version
        assert version == reference.write("reviewer", write, None)
        if isinstance(write, Label):
            predictions[version] = given.model_copy(
                update={"informed": given.informed or had_label}
            )
    now, tests = reference.labels(), {}
    for version, given in predictions.items():
        write = reference.events[version - 1][1]
        assert isinstance(write, Label)
        label = now.get(write.node, (None,))[0]
        in_force = reference.in_force(version, len(reference.events))
        if in_force and not given.informed and label is not None:
            tests[write.node] = (given.probability, given.label == label)
    sampled = {row[0] for row in store.reader.rows("select node from sample")}
    found = live_accuracy(store.reader)
    for figures, expected in (
        (found.all, list(tests.values())),
        (found.random, [test for node, test in tests.items() if node in sampled]),
    ):
        assert (figures.count, figures.correct) == (len(expected), sum(r for _, r in expected))
        if expected:
            mean = sum(p for p, _ in expected) / len(expected)
            assert figures.probability == pytest.approx(mean)
            assert figures.gap == pytest.approx(figures.probability - figures.accuracy)
    assert found.unanswered == len(sampled - tests.keys())
