"""Reading events in parts, single events, and the history of a node."""

from unimp.serving.events import Label, NewEdge, Note, Skip, Undo, Withdrawal
from unimp.serving.store import Store


def test_events_are_read_in_parts(store: Store) -> None:
    for number in range(7):
        store.write("labeler", Label(node="a", label=str(number)), key=f"k{number}")
    read = []
    while part := store.reader.events(since=read[-1].version if read else 0, most=3):
        assert len(part) <= 3
        read += part
    assert [event.version for event in read] == [1, 2, 3, 4, 5, 6, 7]
    assert store.reader.event(3) == read[2]
    assert read[2].key == "k2"
    assert store.reader.event(8) is None
    assert store.reader.events(since=7) == []


def test_the_history_of_a_node_states_what_is_in_force(store: Store) -> None:
    store.write("labeler", Label(node="a", label="x"))
    store.write("labeler", Note(node="a", text="why?"))
    store.write("reviewer", NewEdge(node="b", target="a"))
    store.write("reviewer", Label(node="a", label="y", source="a"))  # a source like the node
    store.write("labeler", Skip(node="b"))
    store.write("labeler", Undo(undoes=2))
    store.write("reviewer", Withdrawal(withdrawn="a"))
    found = [(event.version, in_force) for event, in_force in store.reader.history("a")]
    assert found == [(1, True), (2, False), (3, True), (4, False)]
    assert store.reader.label("a").label == "x"
