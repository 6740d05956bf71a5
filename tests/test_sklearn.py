"""UniMPClassifier: the interface of scikit-learn, and no label of a test fold reaches the model."""

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    PredefinedSplit,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils._testing import assert_allclose
from sklearn.utils.estimator_checks import estimator_checks_generator

import unimp
from unimp.data.npz import load_npz
from unimp.data.synthetic import synthetic_task
from unimp.data.tables.from_tables import task_from_tables
from unimp.ensemble.model import Ensemble
from unimp.errors import TaskError, TrainingError, UnimpError
from unimp.graph.graph import Graph
from unimp.graph.node_view import NodeView
from unimp.sklearn import UniMPClassifier, _held_out
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

DOCS = Path(__file__).parents[1] / "docs"
# Estimator checks of scikit-learn that do not apply to this classifier, and why.
CHECKS_THAT_DO_NOT_APPLY: dict[str, str] = {
    "check_classifiers_classes": (
        "it uses -1 and 1 as two classes, but -1 means unknown here, as in the semi-supervised "
        "classifiers of scikit-learn"
    ),
    "check_methods_subset_invariance": (
        "it requires that rows predicted alone and together agree to 1e-7, which is finer than the "
        "single precision of the model; they agree to 1e-5"
    ),
}
CHECKED = UniMPClassifier(
    layers=1,
    width=16,
    heads=1,
    epochs=15,
    lr=0.1,
    dropout=0.0,
    input_dropout=0.0,
    random_state=0,
    device="cpu",
    settings={"train.eval_every": 5},
)


def name_of(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


PRECISION = "check_methods_subset_invariance"
CHECKS = [
    pytest.param(
        estimator,
        check,
        id=f"{name_of(check)}{dict(getattr(check, 'keywords', {})) or ''}",
        marks=pytest.mark.xfail(strict=True, reason=CHECKS_THAT_DO_NOT_APPLY[name_of(check)])
        if name_of(check) in CHECKS_THAT_DO_NOT_APPLY and name_of(check) != PRECISION
        else (),
    )
    for estimator, check in estimator_checks_generator(CHECKED)
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_the_checks_of_scikit_learn_pass(
    estimator: Any, check: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name_of(check) == PRECISION:  # it compares to 1e-7, which single precision may not reach

        def close(actual: Any, expected: Any, **options: Any) -> None:
            assert_allclose(actual, expected, **{**options, "atol": 1e-5})

        monkeypatch.setattr("sklearn.utils.estimator_checks.assert_allclose", close)
    check(estimator)


def test_every_check_that_does_not_apply_exists_and_is_documented() -> None:
    names = {name_of(check) for _, check in estimator_checks_generator(CHECKED)}
    page = (DOCS / "scikit-learn.md").read_text(encoding="utf-8")
    for name, reason in CHECKS_THAT_DO_NOT_APPLY.items():
        assert name in names
        assert reason
        assert f"`{name}`" in page


def small(**changes: Any) -> UniMPClassifier:
    options = {"width": 8, "heads": 1, "layers": 2, "epochs": 8, "lr": 0.02, "device": "cpu"}
    return UniMPClassifier(**{**options, "random_state": 0, **changes})


@pytest.fixture(scope="module")
def task() -> Task:
    """Features carry little information, labels of neighbors carry much."""
    return synthetic_task(
        num_nodes=300,
        num_edges=1500,
        num_classes=3,
        num_features=6,
        homophily=0.9,
        feature_signal=0.5,
        split_shares=(0.4, 0.1, 0.5),
    )


@pytest.fixture(scope="module")
def nodes(task: Task) -> NodeView:
    return task.graph.nodes


@pytest.fixture(scope="module")
def y(task: Task) -> Any:
    return task.labels.numpy()


@pytest.fixture(scope="module")
def known(task: Task) -> Any:
    return task.split.train.numpy()


@pytest.fixture(scope="module")
def fitted(nodes: NodeView, y: Any, known: Any) -> UniMPClassifier:
    return small(epochs=60).fit(nodes[known], y[known])


def test_the_package_exports_the_classifier() -> None:
    assert unimp.UniMPClassifier is UniMPClassifier
    assert "UniMPClassifier" in dir(unimp)
    with pytest.raises(AttributeError, match="UniMPClasifier"):
        unimp.UniMPClasifier  # noqa: B018


def test_edges_and_labels_of_neighbors_improve_on_features_alone(
    fitted: UniMPClassifier, nodes: NodeView, y: Any, known: Any, task: Task
) -> None:
    test = task.split.test.numpy()
    from_features = small(epochs=60).fit(nodes[known].features, y[known])
    assert fitted.score(nodes[test], y[test]) > 0.75
    assert from_features.score(nodes[test].features, y[test]) < 0.6


def test_labels_of_a_test_fold_never_reach_the_model(nodes: NodeView, y: Any) -> None:
    fold = PredefinedSplit(np.where(np.arange(len(y)) < 100, 0, -1))
    wrong = y.copy()
    wrong[:100] = (wrong[:100] + 1) % 3
    honest, deceived = (
        cross_validate(small(), nodes, labels, cv=fold, return_estimator=True)["estimator"][0]
        for labels in (y, wrong)
    )
    assert np.array_equal(honest.predict_proba(nodes), deceived.predict_proba(nodes))
    assert np.array_equal(honest.transduction_[100:], y[100:])  # labels of the other nodes are used


def test_a_node_outside_the_view_counts_as_a_node_with_an_unknown_label(
    nodes: NodeView, y: Any, known: Any
) -> None:
    among_all = np.full_like(y, -1)
    among_all[known] = y[known]
    some = small().fit(nodes[known], y[known])
    every = small().fit(nodes, among_all)
    assert np.array_equal(some.predict_proba(nodes), every.predict_proba(nodes))
    assert every.classes_.tolist() == [0, 1, 2]


def test_the_order_of_rows_changes_only_the_order_of_predictions(
    nodes: NodeView, y: Any, known: Any, fitted: UniMPClassifier
) -> None:
    backward = small(epochs=60).fit(nodes[known[::-1]], y[known[::-1]])
    assert np.array_equal(backward.predict_proba(nodes), fitted.predict_proba(nodes))
    rows = np.array([5, 3, 3, 250])
    assert np.array_equal(fitted.predict_proba(nodes[rows]), fitted.predict_proba(nodes)[rows])


def test_rows_of_a_matrix_have_the_same_predictions_alone_and_together(
    nodes: NodeView, y: Any
) -> None:
    x = nodes.features
    classifier = small().fit(x, y)
    alone = np.concatenate([classifier.predict_proba(x[i : i + 1]) for i in range(20)])
    assert np.allclose(alone, classifier.predict_proba(x)[:20], rtol=0, atol=1e-5)


def test_it_works_in_cross_validation_and_searches(nodes: NodeView, y: Any, known: Any) -> None:
    scores = cross_val_score(small(epochs=20), nodes[known], y[known], cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.4
    grid = {"width": np.array([4, 8]), "lr": np.array([0.01])}
    search = GridSearchCV(small(), grid, cv=2).fit(nodes[known], y[known])
    assert search.best_params_["width"] in (4, 8)
    assert search.predict(nodes).shape == (len(y),)
    chances = cross_val_predict(
        small(), nodes[known], y[known], cv=KFold(2), method="predict_proba"
    )
    assert chances.shape == (len(known), 3)


def test_the_classifier_follows_a_transformer_of_the_graph_in_a_pipeline(
    nodes: NodeView, y: Any, known: Any
) -> None:
    one_way = nodes.with_graph(one_direction(nodes.graph))
    both_ways = FunctionTransformer(lambda view: view.with_graph(view.graph.symmetrize()))
    pipeline = make_pipeline(both_ways, small()).fit(one_way[known], y[known])
    # The transformer makes a new graph each time; it is equal, so the labels of fit are inputs.
    assert pipeline[-1].graph_ is not nodes.graph
    direct = small().fit(one_way.with_graph(one_way.graph.symmetrize())[known], y[known])
    assert np.array_equal(pipeline.predict_proba(one_way), direct.predict_proba(direct.graph_))
    inside = small(settings=["task.symmetrize=true"]).fit(one_way[known], y[known])
    assert np.array_equal(pipeline.predict_proba(one_way), inside.predict_proba(one_way))


def one_direction(graph: Graph) -> Graph:
    kept = graph.source < graph.target
    return Graph.from_edges(graph.edge_index[:, kept], x=graph.x)


def test_a_clone_has_the_same_arguments_and_is_not_fitted(fitted: UniMPClassifier) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(fitted.graph_)
    assert copy.set_params(layers=5).layers == 5


def test_equal_random_states_give_equal_results_and_other_states_do_not(
    nodes: NodeView, y: Any, known: Any
) -> None:
    def chances(state: Any) -> Any:
        return small(random_state=state).fit(nodes[known], y[known]).predict_proba(nodes)

    assert np.array_equal(chances(3), chances(3))
    assert np.array_equal(chances(np.random.RandomState(3)), chances(3))
    assert not np.array_equal(chances(3), chances(4))


def test_fits_in_several_threads_give_the_same_results_as_one_after_the_other(
    nodes: NodeView, y: Any, known: Any
) -> None:
    def chances(state: int) -> Any:
        return small(random_state=state).fit(nodes[known], y[known]).predict_proba(nodes)

    states = [3, 4, 3, 5, 3, 4]
    expected = [chances(state) for state in states]
    with ThreadPoolExecutor(len(states)) as pool:
        found = list(pool.map(chances, states))
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


def test_a_fit_does_not_change_the_random_numbers_of_the_caller(
    nodes: NodeView, y: Any, known: Any
) -> None:
    torch.manual_seed(1)
    small().fit(nodes[known], y[known])
    found = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(found, torch.rand(3))


def test_a_pickled_classifier_predicts_bitwise_the_same(
    fitted: UniMPClassifier, nodes: NodeView
) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(nodes), fitted.predict_proba(nodes))


NAMES = np.array(["ant", "bee", "cat"])


@pytest.mark.parametrize(
    ("as_given", "classes"),
    [
        (lambda y: NAMES[y], ["ant", "bee", "cat"]),
        (lambda y: np.where(y == 0, "", NAMES[y]), ["bee", "cat"]),
        (lambda y: np.where(y == 0, None, NAMES[y].astype(object)), ["bee", "cat"]),
        (lambda y: pd.Series(NAMES[y]).where(y != 0), ["bee", "cat"]),
        (lambda y: pd.Series(np.array([7, -5, 1000])[y]), [-5, 7, 1000]),
        (lambda y: pd.Series(y, dtype="Int64").mask(y == 0), [1, 2]),
        (lambda y: np.where(y == 0, np.nan, y), [1.0, 2.0]),
        (lambda y: np.where(y == 0, None, y), [1, 2]),
        (lambda y: y == 1, [False, True]),
        (lambda y: torch.from_numpy(y), [0, 1, 2]),
        (lambda y: y - 1, [0, 1]),
    ],
)
def test_classes_are_texts_or_any_numbers_and_missing_values_are_unknown(
    nodes: NodeView, y: Any, as_given: Callable[[Any], Any], classes: list[Any]
) -> None:
    labels = as_given(y)
    classifier = small(epochs=2).fit(nodes, labels)
    assert classifier.classes_.tolist() == classes
    assert set(classifier.predict(nodes).tolist()) <= set(classes)
    assert classifier.predict_proba(nodes).shape == (len(y), len(classes))
    assert 0 <= classifier.score(nodes, labels) <= 1


def test_transduction_keeps_given_labels_and_fills_in_the_rest(
    fitted: UniMPClassifier, nodes: NodeView, y: Any, known: Any
) -> None:
    assert np.array_equal(fitted.transduction_[known], y[known])
    assert np.array_equal(fitted.transduction_, fitted.predict(nodes))
    chances = fitted.predict_proba(nodes)
    assert (chances[known, y[known]] == 1).all()
    assert chances.sum(1) == pytest.approx(1)
    assert (np.delete(chances, known, 0) < 1).all()


def test_labels_that_arrive_later_are_inputs_without_training(
    fitted: UniMPClassifier, nodes: NodeView, y: Any, known: Any
) -> None:
    rest = np.setdiff1d(np.arange(len(y)), known)
    later, asked = rest[:80], rest[80:]
    before = {name: value.clone() for name, value in fitted.run_.model.state_dict().items()}
    as_mapping = fitted.predict_proba(nodes[asked], labels={int(n): y[n] for n in later})
    everywhere = np.full_like(y, -1)
    everywhere[later] = y[later]
    assert np.array_equal(as_mapping, fitted.predict_proba(nodes[asked], labels=everywhere))
    assert not np.array_equal(as_mapping, fitted.predict_proba(nodes[asked]))
    after = fitted.run_.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    more = (fitted.predict(nodes[asked], labels=everywhere) == y[asked]).mean()
    assert more >= (fitted.predict(nodes[asked]) == y[asked]).mean()


def test_on_another_graph_only_the_given_labels_are_inputs(
    fitted: UniMPClassifier, nodes: NodeView, y: Any, known: Any
) -> None:
    order = torch.arange(len(y)).flip(0)
    other = nodes.graph.renumber(order).nodes
    later = {len(y) - 1 - int(n): y[n] for n in known}
    same = fitted.predict_proba(nodes)[::-1]
    assert np.allclose(fitted.predict_proba(other, labels=later), same, rtol=0, atol=1e-5)
    assert not np.allclose(fitted.predict_proba(other), same, rtol=0, atol=1e-2)


def test_binary_tasks_have_a_column_each_and_missing_entries(task: Task) -> None:
    several = synthetic_task(
        num_nodes=200,
        num_edges=900,
        num_classes=3,
        num_features=8,
        homophily=0.9,
        multilabel_tasks=4,
        missing_share=0.3,
    )
    nodes, y = several.graph.nodes, several.labels.numpy()
    train, rest = np.arange(120), np.arange(120, 200)
    classifier = small(epochs=40).fit(nodes[train], y[train])
    assert classifier.classes_.tolist() == [0, 1, 2, 3]
    assert classifier.predict_proba(nodes[rest]).shape == (80, 4)
    assert set(np.unique(classifier.predict(nodes[rest]))) <= {0, 1}
    assert classifier.score(nodes[rest], y[rest]) > 0.65
    given = y[train] != -1
    assert np.array_equal(classifier.transduction_[train][given], y[train][given])
    more = classifier.predict_proba(nodes, labels={150: [1, -1, 0, -1]})
    assert not np.array_equal(more, classifier.predict_proba(nodes))
    with_nan = np.where(y == -1, np.nan, y)
    again = small(epochs=40).fit(nodes[train], with_nan[train])
    assert np.array_equal(again.predict_proba(nodes), classifier.predict_proba(nodes))


@pytest.mark.parametrize("model", ["mlp", "gcn", "label-propagation"])
def test_other_models_can_be_chosen(nodes: NodeView, y: Any, known: Any, model: str) -> None:
    classifier = small(model=model).fit(nodes[known], y[known])
    assert classifier.predict_proba(nodes).sum(1) == pytest.approx(1)


def test_without_validation_all_labels_are_used_and_the_last_epoch_is_chosen(
    nodes: NodeView, y: Any, known: Any
) -> None:
    classifier = small(validation_fraction=0).fit(nodes[known], y[known])
    assert sorted(classifier.run_.task.split.train.tolist()) == sorted(known.tolist())
    assert classifier.run_.metrics["best_epoch"] == classifier.n_iter_ == 8
    with_some = small(validation_fraction=0.25).fit(nodes[known], y[known])
    assert with_some.run_.task.split.val.numel() == round(0.25 * len(known))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.floats(0, 0.99),
    st.integers(0, 9),
)
def test_validation_is_a_stratified_share_that_leaves_a_train_label_per_class(
    classes: list[int], share: float, seed: int
) -> None:
    labels = np.array(classes)
    held = _held_out(np.arange(len(labels)), labels, share, np.random.RandomState(seed))
    assert len(np.unique(held)) == len(held)
    assert set(np.delete(labels, held)) == set(labels)
    counts = np.bincount(labels)
    most = len(labels) - np.count_nonzero(counts)
    assert len(held) == min(round(share * len(labels)), most)
    for code, count in enumerate(np.bincount(labels[held], minlength=len(counts))):
        even = max(counts[code] - 1, 0) * len(held) / max(most, 1)
        assert abs(count - even) <= 1


def test_a_failed_training_is_refused_with_the_option_to_change(
    nodes: NodeView, y: Any, known: Any
) -> None:
    with pytest.raises(TrainingError, match="lr"):
        small(lr=1e30).fit(nodes[known], y[known])


@pytest.mark.parametrize(
    ("attempt", "answer"),
    [
        (lambda c, n, y: c.fit(n, np.full(len(y), -1)), "no label in y is known"),
        (lambda c, n, y: c.fit(n[[0, 0]], [0, 1]), "node 0 .*several rows"),
        (lambda c, n, y: c.fit(n, [0, 1]), "inconsistent numbers of samples"),
        (lambda c, n, y: c.fit(n, y + 0.5), "Unknown label type: continuous"),
        (lambda c, n, y: c.fit(n[:2], np.array([1, "a"], dtype=object)), "only strings"),
        (lambda c, n, y: c.fit(n[:2], np.array([{}, {}])), "Unknown label type: dict"),
        (lambda c, n, y: c.fit(n, np.stack((y, y), 1)), "0, 1.*-1|-1.*0"),
        (lambda c, n, y: c.fit(n.features, y).predict(n.features, labels={0: 1}), "leave them"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels={0: 9}), "9"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels={999: 1}), "999"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels={"a": 1}), "'a'"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels=y > 0), "True and False"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels=7), "labels"),
        (lambda c, n, y: c.fit("nodes", y), "string"),
        (lambda c, n, y: c.fit(n, 3), "array-like"),
        (lambda c, n, y: c.set_params(random_state="a").fit(n, y), "'a'"),
        (lambda c, n, y: c.set_params(settings=42).fit(n, y), "settings.*42"),
        (lambda c, n, y: c.set_params(validation_fraction="x").fit(n, y), "validation_fraction"),
        (lambda c, n, y: c.fit(n[[]], []), "no label in y is known"),
        (lambda c, n, y: c.fit(n, y).predict(n, labels=[1, 2]), r"\(2,\).*\(300,\)"),
        (
            lambda c, n, y: c.fit(n, y).predict(n.with_graph(n.graph.with_features(None))),
            "0 features",
        ),
        (lambda c, n, y: c.set_params(inputs="A,Y").fit(n.features, y), "a plain matrix"),
        (lambda c, n, y: c.set_params(inputs="X,Y").fit(n, y), r"model\.inputs.*X,A,Y"),
        (lambda c, n, y: c.set_params(layers=0).fit(n, y), r"model\.layers"),
        (lambda c, n, y: c.set_params(settings=["model.gat=all"]).fit(n, y), r"'model\.gate'"),
        (lambda c, n, y: c.set_params(validation_fraction=1.0).fit(n, y), "validation_fraction"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_wrong(
    nodes: NodeView, y: Any, attempt: Callable[[Any, NodeView, Any], Any], answer: str
) -> None:
    with pytest.raises(UnimpError, match=answer):
        attempt(small(epochs=1), nodes, y)


def test_unknown_labels_are_not_scored_and_unseen_classes_count_as_errors(
    fitted: UniMPClassifier, nodes: NodeView, y: Any
) -> None:
    guess = fitted.predict(nodes)
    half = np.where(np.arange(len(y)) < 150, guess, -1)
    assert fitted.score(nodes, half) == 1
    half[:75] = 9
    assert fitted.score(nodes, half) == 0.5


def test_sample_weights_are_refused(nodes: NodeView, y: Any) -> None:
    with pytest.raises(TypeError, match="sample_weight"):
        small().fit(nodes, y, sample_weight=np.ones(len(y)))  # type: ignore[call-arg]


@pytest.mark.parametrize("unknown", [float("nan"), -1])
def test_an_unknown_label_in_a_list_of_texts_is_unknown(
    unknown: Any, nodes: NodeView, y: Any
) -> None:
    names = [unknown if row % 4 == 0 else "abc"[label] for row, label in enumerate(y)]
    classifier = small(epochs=2).fit(nodes, names)
    assert classifier.classes_.tolist() == ["a", "b", "c"]
    assert 0 <= classifier.score(nodes, names) <= 1
    assert set(classifier.transduction_) == {"a", "b", "c"}


def test_a_score_without_known_labels_is_refused(
    fitted: UniMPClassifier, nodes: NodeView, y: Any
) -> None:
    with pytest.raises(TaskError, match="no label in y is known"):
        fitted.score(nodes[[1, 2]], [-1, -1])
    tasks = np.stack([y == 0, y == 1], 1).astype(int)
    with pytest.raises(TaskError, match="no label in y is known"):
        small(epochs=2).fit(nodes, tasks).score(nodes[[1, 2]], np.full((2, 2), -1))


@pytest.mark.parametrize("classes", [(-1, 1), (1.0, -1.0), (None, "yes")])
def test_labels_of_one_known_class_are_refused_and_not_learned(
    nodes: NodeView, y: Any, known: Any, classes: tuple[Any, Any]
) -> None:
    given = np.array(classes, dtype=object)[np.asarray(y[known] == y[known][0], dtype=int)].tolist()
    with pytest.raises(TaskError, match="there is only one class") as error:
        small().fit(nodes[known], given)
    assert "-1 means unknown" in str(error.value)


def test_a_nul_at_the_end_of_a_class_is_not_lost(nodes: NodeView, y: Any, known: Any) -> None:
    given = ["yes\0" if label == y[known][0] else "yes" for label in y[known]]
    assert small(epochs=1).fit(nodes[known], given).classes_.tolist() == ["yes", "yes\0"]


class TrainingStartedError(Exception):
    """Raised in place of training."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(labels=st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=6, max_size=6))
def test_one_class_is_treated_alike_in_tables_npz_tasks_and_the_classifier(
    labels: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = np.flatnonzero(np.array(labels) >= 0)
    assume(len(known) > 2)
    graph = Graph.from_edges([[0], [1]], x=torch.arange(6.0)[:, None], num_nodes=6)
    split = Split(torch.from_numpy(known[:1]), torch.from_numpy(known[1:]), torch.tensor([]))
    arrays = {part: getattr(split, part).numpy() for part in ("train", "val", "test")}
    arrays |= {"y": np.array(labels), "edge_index": np.array([[0], [1]]), "directed": np.array(1)}
    np.savez(tmp_path / "labels.npz", **arrays)
    nodes = {"id": list("abcdef"), "label": labels}
    edges = {"source": ["a"], "target": ["b"]}

    def began(*arguments: Any, **options: Any) -> None:
        raise TrainingStartedError

    monkeypatch.setattr("unimp.sklearn.run", began)
    ways: list[Callable[[], object]] = [
        lambda: Task("t", graph, torch.tensor(labels), split, "accuracy", 3),
        lambda: load_npz(tmp_path / "labels.npz"),
        lambda: task_from_tables(nodes, edges, label="label"),
        lambda: UniMPClassifier().fit(graph.nodes, labels),
    ]
    refused = []
    for way in ways:
        try:
            way()
        except TaskError as error:
            assert "there is only one class: every known label is" in str(error)  # noqa: PT017
            refused.append(True)
        except TrainingStartedError:
            refused.append(False)
        else:
            refused.append(False)
    assert set(refused) == {len({labels[n] for n in known}) == 1}


def test_later_labels_may_be_a_series_or_a_tensor(
    fitted: UniMPClassifier, nodes: NodeView, y: Any
) -> None:
    expected = fitted.predict_proba(nodes, np.asarray(y))
    for labels in (pd.Series(y), torch.from_numpy(np.asarray(y))):
        assert np.array_equal(fitted.predict_proba(nodes, labels), expected)
    with pytest.raises(TaskError, match="grad"):
        fitted.predict(nodes, torch.zeros(len(y), requires_grad=True))


def test_truth_is_not_a_node_of_later_labels(
    fitted: UniMPClassifier, nodes: NodeView, y: Any
) -> None:
    with pytest.raises(TaskError, match="node True"):
        fitted.predict(nodes, {True: y[0]})


def of_preset(**changes: Any) -> UniMPClassifier:
    members = {"ensemble.members": ["label-propagation", "ridge", "gcn"], "ensemble.folds": 2}
    options = {"preset": "quick", "device": "cpu", "random_state": 0, "settings": members}
    return UniMPClassifier(**{**options, **changes})


@pytest.fixture(scope="module")
def ensemble(nodes: NodeView, y: Any, known: Any) -> UniMPClassifier:
    return of_preset().fit(nodes[known], y[known])


def test_a_preset_fits_an_ensemble_that_answers_like_one_model(
    ensemble: UniMPClassifier, nodes: NodeView, y: Any, known: Any, task: Task
) -> None:
    test = task.split.test.numpy()
    assert isinstance(ensemble.run_.model, Ensemble)
    assert ensemble.run_.recipe.train.time_limit == 27
    assert ensemble.n_iter_ == 3
    assert ensemble.score(nodes[test], y[test]) > 0.75
    assert np.array_equal(ensemble.transduction_, ensemble.predict(nodes))
    chances = ensemble.predict_proba(nodes)
    assert (chances[known, y[known]] == 1).all()
    assert chances.sum(1) == pytest.approx(1)
    later = {int(n): y[n] for n in test[:50]}
    assert not np.array_equal(ensemble.predict_proba(nodes, labels=later)[test[50:]], chances)
    other = nodes.graph.renumber(torch.arange(len(y)).flip(0)).nodes
    moved = {len(y) - 1 - int(n): y[n] for n in known}
    found = ensemble.predict_proba(other, labels=moved)
    assert np.allclose(found, chances[::-1], rtol=0, atol=1e-5)
    again = pickle.loads(pickle.dumps(ensemble))
    assert np.array_equal(again.predict_proba(nodes), chances)
    assert clone(ensemble).get_params()["preset"] == "quick"


def test_labels_of_a_test_fold_never_reach_an_ensemble(nodes: NodeView, y: Any) -> None:
    fold = PredefinedSplit(np.where(np.arange(len(y)) < 100, 0, -1))
    wrong = y.copy()
    wrong[:100] = (wrong[:100] + 1) % 3
    members = {"ensemble.members": ["label-propagation", "ridge"]}
    # With this limit, a busy machine does not end one of the two earlier.
    patient = of_preset(time_limit="10m", settings=members)
    honest, deceived = (
        cross_validate(patient, nodes, labels, cv=fold, return_estimator=True)["estimator"][0]
        for labels in (y, wrong)
    )
    assert np.array_equal(honest.predict_proba(nodes), deceived.predict_proba(nodes))


def test_an_ensemble_of_the_rows_of_a_matrix(nodes: NodeView, y: Any, known: Any) -> None:
    x = nodes[known].features
    classifier = of_preset().fit(x, y[known])
    assert classifier.score(x, y[known]) > 0.4
    assert classifier.predict_proba(x[:7]).shape == (7, 3)


def test_the_time_limit_is_that_of_the_argument(nodes: NodeView, y: Any, known: Any) -> None:
    members = {"ensemble.members": ["ridge"]}
    preset = of_preset(time_limit="45s", settings=members)
    for classifier in (preset, small(time_limit=45), small(time_limit="45s")):
        found = classifier.fit(nodes[known], y[known])
        assert found.run_.recipe.train.time_limit == 45


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 16}, "model.width"),
        ({"settings": {"model.layers": 5}}, "model.layers"),
        ({"settings": ["train.lr=0.1"]}, "train.lr"),
        ({"preset": "better"}, "better"),
        ({"time_limit": "soon"}, "time_limit"),
    ],
)
def test_options_that_do_not_fit_a_preset_are_refused(
    nodes: NodeView, y: Any, known: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnimpError, match=re.escape(words)):
        of_preset(**changes).fit(nodes[known], y[known])


def test_auto_chooses_a_small_model_if_few_labels_are_known(
    nodes: NodeView, y: Any, known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model.layers": 1, "train.time_limit": 0.01}
    options = {"device": "cpu", "random_state": 0, "settings": settings}
    recipe = UniMPClassifier(**options).fit(nodes[known], y[known]).run_.recipe
    assert (recipe.model.width, recipe.train.epochs) == (64, 100)
    given = UniMPClassifier(width=8, **options).fit(nodes[known], y[known]).run_.recipe
    assert (given.model.width, given.train.epochs) == (8, 100)
    monkeypatch.setattr("unimp.sklearn.FEW_LABELS", len(known) - 1)
    recipe = UniMPClassifier(**options).fit(nodes[known], y[known]).run_.recipe
    assert (recipe.model.width, recipe.train.epochs) == (128, 500)


@pytest.mark.parametrize(
    ("arguments", "settings", "first"),
    [
        ({}, {}, 51),
        ({}, {"train.epochs": 20}, 1),
        ({"patience": 5}, {}, 1),
        ({}, {"train.patience": 5}, 1),
        ({"time_limit": "10m"}, {}, 1),
        ({}, {"train.time_limit": 600}, 1),
        ({}, {"train.eval_from": 90}, 90),
        ({"validation_fraction": 0}, {"train.epochs": 20}, 20),
    ],
)
def test_only_a_training_of_100_epochs_by_default_is_scored_from_its_second_half(
    nodes: NodeView, y: Any, known: Any, arguments: Any, settings: Any, first: int
) -> None:
    classifier = small(epochs="auto", layers=1, settings=settings, **arguments)
    found = classifier.fit(nodes[known], y[known]).run_
    assert found.recipe.train.eval_from == first
    assert found.metrics["best_epoch"] >= first


def test_a_time_limit_leaves_a_validated_epoch(nodes: NodeView, y: Any, known: Any) -> None:
    settings = {"train.time_limit": 0.01, "train.eval_from": 51}
    classifier = small(epochs="auto", settings=settings).fit(nodes[known], y[known])
    assert classifier.run_.metrics["cut_short"]
    assert classifier.run_.metrics["best_epoch"] == classifier.n_iter_
