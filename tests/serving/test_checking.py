"""Checks, repairs and backups of the database."""

import sqlite3
import threading
from pathlib import Path

import pytest

from unimp.errors import OutputError, RunError
from unimp.serving.checking import backup, check, rebuild
from unimp.serving.events import Label, NewEdge, Undo
from unimp.serving.reader import Reader
from unimp.serving.store import Store

TAMPERING = {
    "the table of labels": ("update now set label = '\"z\"' where node = 'a'", "label of 'a'"),
    "a removed label": ("delete from now where node = 'b'", "label of 'b'"),
    "an added label": ("insert into now values ('q', '\"x\"', 1, 'a', 'a', 1)", "label of 'q'"),
    "a change after the last event": ("update now set changed = 99", "99"),
    "the table of edges": ("update edge set version = 0", "edge"),
    "an undone event": ("insert into undone values (3)", "event 3"),
    "an event that is not undone anymore": ("delete from undone", "event 2"),
    "an event": ('update event set body = \'{"label":"z"}\' where version = 3', "event 3"),
    "the author of an event": ("update event set actor = 'admin' where version = 1", "event 1"),
    "a gap": ("delete from event where version = 3", "events 3 to 3"),
    "an actor who does not exist": ("delete from actor where name = 'labeler'", "actor"),
}


@pytest.fixture
def folder(store: Store) -> Path:
    for node, label in (("a", "x"), ("a", "y"), ("b", "x")):
        store.write("labeler", Label(node=node, label=label))
    store.write("reviewer", Undo(undoes=2))
    store.write("reviewer", NewEdge(node="a", target="b"))
    store.close()
    return store.folder


@pytest.mark.parametrize("what", TAMPERING)
def test_tampering_is_found_and_tables_are_rebuilt(folder: Path, what: str) -> None:
    statement, named = TAMPERING[what]
    with Reader(folder) as reader:
        assert check(reader) == []
    db = sqlite3.connect(folder / "labels.db", isolation_level=None)
    db.execute(statement)
    db.close()
    with Store(folder) as store:
        problems = check(store.reader)
        assert named in " ".join(problems)
        if "event" not in statement.split()[:3] and "actor" not in statement.split()[:3]:
            rebuild(store)
            assert check(store.reader) == []
            assert store.reader.label("a").label == "x"


def test_a_damaged_file_is_found(folder: Path) -> None:
    path = folder / "labels.db"
    data = bytearray(path.read_bytes())
    place = data.index(b'{"label":"x"}')  # in the table of events, near the end of its page
    data[place - 60 : place] = bytes(60)
    path.write_bytes(data)
    try:
        with Reader(folder) as reader:
            assert check(reader) != []
    except (RunError, sqlite3.DatabaseError):
        pass  # refused at once


def test_a_backup_while_others_write_is_one_state_and_can_be_served(
    store: Store, tmp_path: Path
) -> None:
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.write("labeler", Label(node=f"n{number % 7}", label=str(number)))

    thread = threading.Thread(target=work)
    thread.start()
    versions = []
    try:
        with Reader(store.folder) as reader:
            for number in range(5):
                path = tmp_path / f"backup-{number}.db"
                acknowledged = store.write("reviewer", Label(node="mark", label=str(number)))
                versions.append(backup(reader, path))
                assert versions[-1] >= acknowledged.version
    finally:
        stop.set()
        thread.join()
    assert versions == sorted(set(versions))
    for number, version in enumerate(versions):
        with Reader(tmp_path / f"backup-{number}.db") as copy:
            assert copy.head() == version
            assert check(copy) == []
            assert copy.label("mark").label == str(number)
    restored = tmp_path / "restored"
    restored.mkdir()
    (tmp_path / "backup-4.db").rename(restored / "labels.db")
    with Store(restored) as again:
        assert again.write("labeler", Label(node="a", label="x")).version == versions[-1] + 1


def test_a_backup_replaces_no_file(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    path.write_text("mine")
    with pytest.raises(OutputError, match=r"kept\.db"):
        backup(store.reader, path)
    with pytest.raises(OutputError, match="missing"):
        backup(store.reader, tmp_path / "missing" / "x.db")
    assert path.read_text() == "mine"
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".kept")]
