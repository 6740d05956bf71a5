"""Requests: all or nothing, at most once, in one order, and on the disk when acknowledged."""

import random
import runpy
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unimp.data.outputs import check_output
from unimp.errors import (
    ConflictError,
    ForbiddenError,
    InvalidWriteError,
    KeyReusedError,
    OutputError,
    RunError,
    ServiceError,
)
from unimp.serving import store as store_module
from unimp.serving.checking import check
from unimp.serving.events import (
    Label,
    ModelChange,
    NewEdge,
    NewNode,
    Note,
    Predicted,
    Retraction,
    Undo,
    Withdrawal,
)
from unimp.serving.reader import Reader
from unimp.serving.store import Request, Store, Vocabulary

PROOF = runpy.run_path(str(Path(__file__).parents[2] / "proofs" / "label_log.py"))


def test_a_request_repeated_with_its_key_is_stored_once(store: Store) -> None:
    first = store.write("labeler", Label(node="a", label="x"), key="k")
    store.write("labeler", Label(node="a", label="y"))
    again = store.write("labeler", Label(node="a", label="x"), key="k", if_match={"a": 0})
    assert (again.version, again.repeated) == (first.version, True)
    assert store.reader.head() == 2
    with pytest.raises(KeyReusedError, match="'k'"):
        store.write("labeler", Label(node="a", label="z"), key="k")
    assert store.write("reviewer", Label(node="a", label="z"), key="k").version == 3


def test_a_batch_repeated_with_its_key_returns_all_its_versions(store: Store) -> None:
    batch = [Label(node=f"n{i}", label="x") for i in range(30)]
    first = store.write("reviewer", *batch, key="file")
    assert (first.first, first.last) == (1, 30)
    again = store.write("reviewer", *batch, key="file")
    assert (again.first, again.last, again.repeated) == (1, 30, True)
    with pytest.raises(KeyReusedError):
        store.write("reviewer", *batch[:-1], key="file")


def test_whoever_was_slower_gets_a_conflict_with_the_version_now(store: Store) -> None:
    store.write("labeler", Label(node="a", label="x"), if_match={"a": 0})
    with pytest.raises(ConflictError) as error:
        store.write("reviewer", Label(node="a", label="y"), if_match={"a": 0})
    assert error.value.versions == {"a": 1}
    store.write("reviewer", Label(node="a", label="y"), if_match={"a": 1})
    store.write("reviewer", Retraction(node="a"), if_match={"a": 2})
    assert store.reader.label("a").label is None
    assert store.reader.head() == 3


def test_a_batch_is_stored_completely_or_not_at_all(tmp_path: Path) -> None:
    vocabulary = Vocabulary(nodes={"a", "b"}, classes=["science", "games"])
    with Store(tmp_path, vocabulary) as store:
        store.people.add("admin", "admin", token=False)
        with pytest.raises(InvalidWriteError) as error:
            store.write(
                "admin",
                Label(node="a", label="science"),
                Label(node="zzz", label="science"),
                Label(node="b", label="scince"),
                Label(node="a", label="games"),
                Label(node="b", label=("science",)),
                NewNode(node="a"),
                NewNode(node="c"),
                NewNode(node="c"),
                NewEdge(node="c", target="d"),
                Undo(undoes=7),
                Withdrawal(withdrawn="nobody"),
            )
        problems = dict(error.value.problems)
        assert list(problems) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
        assert "'science'" in problems[2]
        assert store.reader.head() == 0
        assert store.reader.changes().labels == ()
        new = NewNode(node="c", values={"size": 3})
        receipt = store.write("admin", new, NewEdge(node="c", target="a"))
        changes = store.reader.changes()
        assert receipt.version == changes.version == 2
        assert [(one.node, one.values) for one in changes.nodes] == [("c", {"size": 3})]
        assert [(one.node, one.target, one.present) for one in changes.edges] == [("c", "a", True)]
        store.write("admin", Label(node="c", label="games"))
        for version in (1, store.write("admin", ModelChange(generation=1)).version):
            with pytest.raises(InvalidWriteError, match="cannot be undone"):
                store.write("admin", Undo(undoes=version))


def test_labels_of_binary_tasks_are_sets(tmp_path: Path) -> None:
    with Store(tmp_path, Vocabulary(classes=["p", "q"], several=True)) as store:
        store.people.add("admin", "admin", token=False)
        store.write("admin", Label(node="a", label=("q", "p")), Label(node="b", label=()))
        assert store.reader.label("a").label == ("p", "q")
        assert store.reader.label("b").label == ()
        with pytest.raises(InvalidWriteError):
            store.write("admin", Label(node="a", label="p"))


@pytest.mark.parametrize(
    ("actor", "write", "allowed"),
    [
        ("reader", Label(node="a", label="y"), False),
        ("labeler", Label(node="a", label="y"), True),
        ("labeler", Note(node="a", text="?"), True),
        ("labeler", Undo(undoes=1), False),  # of another actor
        ("labeler", Undo(undoes=2), True),
        ("labeler", Withdrawal(withdrawn="admin"), False),
        ("labeler", NewNode(node="b"), False),
        ("reviewer", Undo(undoes=1), True),
        ("reviewer", NewNode(node="b"), True),
        ("reviewer", ModelChange(generation=1), False),
        ("admin", ModelChange(generation=1), True),
        ("nobody", Label(node="a", label="y"), False),
    ],
)
def test_roles_decide_who_may_write_what(
    store: Store, actor: str, write: Label, allowed: bool
) -> None:
    store.write("admin", Label(node="a", label="x"))
    store.write("labeler", Label(node="a", label="x"))
    if allowed:
        assert store.write(actor, write).version == 3
    else:
        with pytest.raises(ForbiddenError):
            store.write(actor, write)
        assert store.reader.head() == 2


def test_many_labels_at_once_need_a_reviewer(store: Store) -> None:
    batch = [Label(node=f"n{i}", label="x") for i in range(21)]
    store.write("labeler", *batch[:20])
    with pytest.raises(ForbiddenError):
        store.write("labeler", *batch)


def test_a_prediction_is_informed_if_the_node_has_a_label(store: Store) -> None:
    predicted = {"a": Predicted(label="x", probability=0.9, generation=3)}
    store.write("labeler", Label(node="a", label="x"), predicted=predicted)
    store.write("labeler", Label(node="a", label="y"), predicted=predicted)
    first, second = (event.predicted for event in store.reader.events())
    assert first == predicted["a"]
    assert second is not None
    assert second.informed


def test_threads_write_without_gaps_and_what_is_acknowledged_is_on_the_disk(
    tmp_path: Path,
) -> None:
    names, count, seen = [f"p{i}" for i in range(8)], 40, Counter[int]()
    commits = []
    with Store(tmp_path, on_commit=lambda: commits.append(1)) as store:
        for name in names:
            store.people.add(name, "labeler", token=False)

        def work(name: str) -> list[tuple[int, str, str, str]]:
            draw, done = random.Random(name), []
            for number in range(count):
                node, label = f"n{draw.randrange(10)}", draw.choice("xyz")
                for _ in range(draw.choice((1, 1, 2))):  # some requests are repeated
                    one = Label(node=node, label=label)
                    receipt = store.write(name, one, key=f"{name}-{number}")
                done.append((receipt.version, name, node, label))
            return done

        with ThreadPoolExecutor(len(names)) as pool:
            acknowledged = [entry for done in pool.map(work, names) for entry in done]
    assert len(commits) < len(names) * (1 + count)  # several requests per transaction
    with Reader(tmp_path) as reader:
        events = reader.events()
        assert check(reader) == []
    seen.update(event.version for event in events)
    assert seen == Counter(range(1, len(names) * count + 1))
    stored = {(e.version, e.actor, e.write.node, e.write.label) for e in events}  # type: ignore[union-attr]
    assert stored == set(acknowledged)


def test_one_of_many_writers_with_the_same_expectation_succeeds(store: Store) -> None:
    barrier = threading.Barrier(6)

    def work(number: int) -> bool:
        barrier.wait()
        try:
            store.write("labeler", Label(node="a", label=str(number)), if_match={"a": 0})
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(work, range(6))) == 1


def test_killed_while_writing_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The short form of proofs/label_log.py."""
    result = PROOF["prove"](kills=5, seed=1, place=tmp_path, clients=4)
    assert result["kills"] == 5
    assert result["acknowledged"] > 20
    assert result["acknowledged_after_a_full_disk"] == 0
    assert (result["lost"], result["doubled"], result["gaps"]) == (0, 0, 0)
    assert result["problems"] == []


def test_one_process_at_a_time_opens_a_folder(store: Store) -> None:
    with pytest.raises(RunError, match="is served by"):
        Store(store.folder)
    program = f"from unimp.serving.store import Store\nStore({str(store.folder)!r})"
    command = [sys.executable, "-c", "from pathlib import Path\n" + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is served by process" in done.stderr


def test_a_reader_in_another_process_sees_acknowledged_labels(store: Store) -> None:
    program = (
        "import sys; from pathlib import Path\nfrom unimp.serving.reader import Reader\n"
        "reader = Reader(Path(sys.argv[1]))\n"
        "for line in sys.stdin: print(reader.head(), reader.label('a').label, flush=True)\n"
        "print(*{'torch', 'numpy', 'pyarrow'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", program, str(store.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(1, 6):
            version = store.write("labeler", Label(node="a", label=str(number))).version
            process.stdin.write("?\n")
            process.stdin.flush()
            assert process.stdout.readline().split() == [str(version), str(number)]
        process.stdin.close()
        assert process.stdout.read().split() == []


def test_the_front_process_loads_nothing_slow() -> None:
    modules = ("accuracy", "checking", "export", "people", "queue", "reader", "store")
    imports = "; ".join(f"import unimp.serving.{name}" for name in modules)
    program = f"import sys; {imports}; print(*{{'torch', 'numpy', 'pyarrow'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, [])


def test_requests_have_writes_and_a_closed_store_refuses(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.people.add("admin", "admin", token=False)
    with pytest.raises(InvalidWriteError):
        store.submit(Request("admin", ()))
    store.close()
    with pytest.raises(ServiceError, match="closed"):
        store.write("admin", Label(node="a", label="x"))


def test_no_output_replaces_the_labels(store: Store) -> None:
    for name in ("labels.db", "labels.db-wal", ".labels.lock"):
        with pytest.raises(OutputError, match="file of a run"):
            check_output(store.folder / name, (".db", ""), force=True)


def test_an_event_cannot_name_an_actor_or_an_event_that_does_not_exist(store: Store) -> None:
    insert = (
        "insert into event (version, at, actor, source, kind, body, undoes, hash) "
        "values (1, '', ?, '', 'undo', '{}', ?, x'00')"
    )
    for values in (("nobody", None), ("admin", 99)):
        job = store.writer.submit(lambda db, values=values: db.execute(insert, values))  # type: ignore[misc]
        with pytest.raises(sqlite3.IntegrityError):
            job.result()
    assert store.write("admin", Label(node="a", label="x")).version == 1  # it is not broken


def test_the_number_and_the_size_of_writes_are_limited(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = NewNode(node="n", values={"x": "a" * 200_000, "y": "b" * 90_000})
    with pytest.raises(InvalidWriteError) as error:
        store.write("admin", Note(node="n", text="x"), large)
    assert [place for place, _ in error.value.problems] == [1]
    with pytest.raises(InvalidWriteError):
        store.write("admin")
    monkeypatch.setattr(store_module, "MOST_WRITES", 2)
    with pytest.raises(InvalidWriteError, match="2"):
        store.write("admin", *(Note(node="n", text="x") for _ in range(3)))
    assert store.reader.head() == 0
