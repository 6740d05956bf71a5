"""The rule of undo and withdrawal, compared with the reference model."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from event_reference import Reference, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from unimp.errors import InvalidWriteError
from unimp.serving.checking import check, rebuild
from unimp.serving.events import (
    Label,
    NewEdge,
    RemovedEdge,
    Retraction,
    Skip,
    Undo,
    Withdrawal,
    Write,
)
from unimp.serving.reader import Reader
from unimp.serving.store import Store

MOST = 25
ACTORS = ("anna", "ben", "script")
node = st.sampled_from(["a", "b", "c"])
source = st.sampled_from([None, "file", "rule"])
label = st.builds(Label, node=node, label=st.sampled_from(["x", "y"]), source=source)
undo = st.builds(Undo, undoes=st.integers(1, MOST + 1))
write = st.one_of(
    label,
    undo,
    undo,
    st.builds(Retraction, node=node, source=source),
    st.builds(Withdrawal, withdrawn=st.sampled_from(["file", "rule", "anna"])),
    st.builds(NewEdge, node=node, target=node),
    st.builds(RemovedEdge, node=node, target=node),
    st.builds(Skip, node=node),
)
step = st.tuples(
    st.sampled_from(ACTORS),
    write,
    st.none() | st.sampled_from(["k1", "k2"]),
    st.none() | st.integers(0, 8),
)


def new_store(folder: Path) -> Store:
    store = Store(folder)
    for actor in ACTORS:
        store.people.add(actor, "admin", token=False)
    return store


def labels_of(reader: Reader) -> dict[str, tuple[Any, int, str]]:
    rows = reader.changes().labels
    return {one.node: (one.label, one.version, str(one.actor)) for one in rows if one.version}


def edges_of(reader: Reader) -> dict[tuple[str, str], tuple[bool, int]]:
    rows = reader.changes().edges
    return {(one.node, one.target): (bool(one.present), one.version) for one in rows if one.version}


undos = st.tuples(st.sampled_from(ACTORS), undo, st.none(), st.none())
labels = st.tuples(st.sampled_from(ACTORS), label, st.none(), st.none())
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a sync there takes no time


@settings(max_examples=80)
@given(st.lists(step, min_size=12, max_size=MOST))
def test_random_sequences_give_the_state_of_the_reference(steps: list[Any]) -> None:
    in_new_folder(steps)


@settings(max_examples=80)
@given(st.lists(labels, min_size=1, max_size=4), st.lists(undos, min_size=5, max_size=14))
def test_undos_of_undos_give_the_state_of_the_reference(first: list[Any], steps: list[Any]) -> None:
    in_new_folder(first + steps)


def in_new_folder(steps: list[Any]) -> None:
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        with new_store(folder) as store:
            follow(store, steps)
    finally:
        shutil.rmtree(folder)


def follow(store: Store, steps: list[tuple[str, Write, str | None, int | None]]) -> None:
    reference = Reference()
    for actor, one, key, match in steps:
        if isinstance(one, Undo) and one.undoes <= MOST and reference.events:
            one = Undo(undoes=(one.undoes - 1) % len(reference.events) + 1)  # one that exists
        if not isinstance(one, Label | Retraction):
            match = None
        options: dict[str, Any] = {} if match is None else {"if_match": {one.node: match}}
        expected = reference.refusal(actor, one, key, match)
        found = outcome(lambda: store.write(actor, one, key=key, **options))  # noqa: B023
        assert found == (expected or len(reference.events) + 1)
        if expected is None:
            reference.write(actor, one, key)
        assert labels_of(store.reader) == reference.labels()
        assert edges_of(store.reader) == reference.edges()
    head = len(reference.events)
    events = store.reader.events()
    assert [(event.actor, event.write.kind) for event in events] == [
        (actor, one.kind) for actor, one in reference.events
    ]
    # Changes since any version lead from the state at that version to the state now.
    for since in range(head + 1):
        changes = store.reader.changes(since)
        assert changes.version == head
        labels = reference.labels(since)
        labels |= {one.node: (one.label, one.version, str(one.actor)) for one in changes.labels}
        edges = reference.edges(since)
        edges |= {(one.node, one.target): (bool(one.present), one.version) for one in changes.edges}
        assert {k: v for k, v in labels.items() if v[1]} == reference.labels()
        assert {k: v for k, v in edges.items() if v[1]} == reference.edges()
        # Nothing is reported that did not change.
        before = reference.labels(since)
        for row in changes.labels:
            touched = any(
                reference.labels(v).get(row.node) != before.get(row.node)
                for v in range(since + 1, head + 1)
            )
            assert touched
    assert check(store.reader) == []
    rebuild(store)
    assert check(store.reader) == []
    assert labels_of(store.reader) == reference.labels()
    assert edges_of(store.reader) == reference.edges()


def test_undo_restores_what_was_current_before(store: Store) -> None:
    for name in ("x", "y", "z"):
        store.write("admin", Label(node="a", label=name))
    assert store.write("admin", Undo(undoes=3)).version == 4
    assert store.reader.label("a").label == "y"
    store.write("admin", Undo(undoes=1))  # an earlier one: nothing changes now
    assert store.reader.label("a").label == "y"
    store.write("admin", Undo(undoes=2))  # x does not come back, because it was undone
    assert store.reader.label("a").label is None
    store.write("admin", Undo(undoes=5))  # the undo of x
    assert store.reader.label("a").label == "x"


def test_an_event_that_two_undos_name_stays_undone_until_both_are_undone(store: Store) -> None:
    store.write("admin", Label(node="a", label="x"))
    for version in (1, 2, 1, 3):  # 2 undoes 1, 3 undoes 2, 4 undoes 1, and 5 brings 2 back
        store.write("admin", Undo(undoes=version))
    assert store.reader.label("a").label is None
    store.write("admin", Undo(undoes=4))
    assert store.reader.label("a").label is None
    store.write("admin", Undo(undoes=2))
    assert store.reader.label("a").label == "x"
    assert check(store.reader) == []


def test_only_what_changed_is_reported(store: Store) -> None:
    for name in ("x", "y"):
        store.write("admin", Label(node="a", label=name))
    store.write("admin", Undo(undoes=1))  # y stays
    assert store.reader.changes(2).labels == ()
    assert store.reader.label("a").changed == 2


def test_withdrawing_a_source_uncovers_other_labels_and_can_be_undone(store: Store) -> None:
    store.write("labeler", Label(node="a", label="x"))
    for name in ("a", "b"):
        store.write("reviewer", Label(node=name, label="y", source="file"))
    store.write("reviewer", Withdrawal(withdrawn="file"))
    assert {n: c.label for n, c in store.reader.labels().items()} == {"a": "x"}
    store.write("reviewer", Label(node="b", label="z", source="file"))  # given later: it counts
    assert store.reader.label("b").label == "z"
    store.write("reviewer", Undo(undoes=4))
    assert {n: c.label for n, c in store.reader.labels().items()} == {"a": "y", "b": "z"}


def test_a_retraction_is_different_from_a_node_without_events(store: Store) -> None:
    store.write("labeler", Retraction(node="a"))
    assert (store.reader.label("a").label, store.reader.label("a").version) == (None, 1)
    assert store.reader.label("b").version == 0
    store.write("labeler", Undo(undoes=1))
    assert store.reader.label("a").version == 0


def test_an_event_is_undone_once_and_a_long_chain_of_undos_ends(store: Store) -> None:
    store.write("labeler", Label(node="a", label="x"))
    store.write("labeler", Undo(undoes=1))
    with pytest.raises(InvalidWriteError, match="undone by event 2"):
        store.write("labeler", Undo(undoes=1))
    for version in range(2, 12):
        store.write("labeler", Undo(undoes=version))
        assert (store.reader.label("a").label == "x") == (version % 2 == 0)
    assert check(store.reader) == []
