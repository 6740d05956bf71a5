"""Group commit, a bounded queue, and what happens when the disk fails (S10)."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from unimp.errors import BrokenError, BusyError
from unimp.serving import writer
from unimp.serving.checking import check
from unimp.serving.events import Label
from unimp.serving.reader import Reader
from unimp.serving.store import Request, Store


class Failing:
    """A connection on which statements that begin with some words fail."""

    def __init__(self, db: sqlite3.Connection, words: str, error: Exception) -> None:
        self._db, self._words, self._error = db, words, error

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._words):
            raise self._error
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def hold(store: Store) -> threading.Event:
    """Let the writer wait in a job until the event is set."""
    started, release = threading.Event(), threading.Event()
    store.writer.submit(lambda db: (started.set(), release.wait()))
    started.wait()
    return release


def test_requests_that_wait_share_a_commit_and_a_refused_one_does_not_disturb(
    tmp_path: Path,
) -> None:
    commits = []
    with Store(tmp_path, on_commit=lambda: commits.append(1)) as store:
        store.people.add("anna", "labeler", token=False)
        release = hold(store)
        jobs = [
            store.submit(Request(actor, (Label(node=str(i), label="x"),)))
            for i, actor in enumerate(["anna", "anna", "nobody", "anna"])
        ]
        before = len(commits)
        release.set()
        assert [job.result().version for job in jobs if not job.exception()] == [1, 2, 3]
        assert jobs[2].exception() is not None
        store.write("anna", Label(node="a", label="x"))
        assert len(commits) == before + 3  # the one that waited, the group, and the last one


def test_a_job_that_fails_after_it_wrote_leaves_nothing_behind(store: Store) -> None:
    def job(db: sqlite3.Connection) -> None:
        db.execute("insert into setting values ('half', 1)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.writer.submit(job).result()
    assert store.reader.rows("select * from setting") == []
    assert store.write("labeler", Label(node="a", label="x")).version == 1


def test_a_listener_that_fails_does_not_stop_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with Store(tmp_path, on_commit=fail) as store:
        store.people.add("anna", "labeler", token=False)
        assert store.write("anna", Label(node="a", label="x")).version == 1
        assert store.write("anna", Label(node="a", label="x")).version == 2
    assert "listener" in caplog.text


def test_a_long_reader_delays_the_wal_but_not_the_writer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WAL_BYTES", 100_000)
    monkeypatch.setattr(store.writer, "_checkpoint_at", 100_000)
    store.writer.submit(lambda db: None).result()
    store.writer._db.execute("pragma busy_timeout = 50")
    with Reader(store.folder) as reader, reader.state():
        assert reader.head() == 0
        for number in range(30):
            assert store.write("labeler", Label(node="a", label=str(number))).version == number + 1
        assert reader.head() == 0  # still the state in which it began
    for number in range(30):
        store.write("labeler", Label(node="a", label=str(number)))
    assert store.reader.head() == 60
    assert (store.folder / "labels.db-wal").stat().st_size < 1_500_000


def test_a_full_queue_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path, most_waiting=3) as store:
        store.people.add("anna", "reviewer", token=False)
        release = hold(store)
        one = Request("anna", (Label(node="a", label="x"),))
        jobs = [store.submit(one) for _ in range(3)]
        with pytest.raises(BusyError, match="3 requests"):
            store.submit(one)
        release.set()
        assert [job.result().version for job in jobs] == [1, 2, 3]
        assert store.submit(one).result().version == 4
        monkeypatch.setattr(writer, "MOST_WRITES", 10)
        release = hold(store)
        store.submit(Request("anna", one.writes * 11))
        with pytest.raises(BusyError, match="11 events"):
            store.submit(one)
        release.set()


def test_another_program_that_writes_makes_it_busy_and_not_broken(store: Store) -> None:
    other = sqlite3.connect(store.folder / "labels.db", isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(BusyError, match="another program"):
        store.write("labeler", Label(node="a", label="x"))
    other.execute("rollback")
    other.close()
    assert store.write("labeler", Label(node="a", label="x")).version == 1


@pytest.mark.parametrize("words", ["commit", "insert into event", "pragma wal_checkpoint"])
def test_after_an_error_of_the_disk_nothing_is_acknowledged_and_reads_continue(
    store: Store, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("labeler", Label(node="a", label="x"))
    monkeypatch.setattr(store.writer, "_checkpoint_at", 0)
    real = store.writer._db
    error = sqlite3.OperationalError("disk I/O error")
    monkeypatch.setattr(store.writer, "_db", Failing(real, words, error))
    jobs = [store.submit(Request("labeler", (Label(node="b", label="x"),)))]
    if words != "pragma wal_checkpoint":  # after the commit of the first request
        with pytest.raises(BrokenError, match="disk I/O error"):
            jobs[0].result()
    store.writer._thread.join(10)
    monkeypatch.setattr(store.writer, "_db", real)  # the disk is fine again, but who knows
    for _ in range(3):
        with pytest.raises(BrokenError, match="restart"):
            store.write("labeler", Label(node="c", label="x"))
    assert store.reader.label("a").label == "x"
    head = store.reader.head()
    store.close()
    with Store(store.folder) as again:
        assert check(again.reader) == []
        assert again.write("labeler", Label(node="c", label="x")).version == head + 1


def test_everything_that_waits_when_the_disk_fails_is_refused(store: Store) -> None:
    release = hold(store)
    store.writer._db = Failing(store.writer._db, "commit", OSError("no space left"))  # type: ignore[assignment]
    jobs = [store.submit(Request("labeler", (Label(node="a", label="x"),))) for _ in range(5)]
    release.set()
    assert {type(job.exception()) for job in jobs} == {BrokenError}
    assert store.writer.is_broken
    assert len({id(job.exception()) for job in jobs}) == len(jobs)  # each has its own traceback


FAULTS = """
import json, resource, sys
from pathlib import Path
from unimp.errors import BrokenError
from unimp.serving.events import Label
from unimp.serving.store import Store
folder, limit = Path(sys.argv[1]), int(sys.argv[2])
store = Store(folder)
store.people.add("anna", "labeler", token=False)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
else:
    (folder / "fail").touch()
acknowledged, refused, after = [], 0, 0
for number in range(400):
    try:
        label = Label(node=f"n{number}", label="x" * 500)
        acknowledged.append(store.write("anna", label, key=str(number)).version)
        after += refused > 0
    except BrokenError:
        refused += 1
        if limit and refused == 3:  # there is space again
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        (folder / "fail").unlink(missing_ok=True)
print(json.dumps([acknowledged, refused, after, len(store.reader.labels())]))
"""
PRELOAD = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int calls = 0;
static int fails(void) {
    const char *path = getenv("FAIL_FILE");
    return path && access(path, F_OK) == 0 && ++calls > 20;
}
static int sync_or_fail(long call, int fd) {
    if (fails()) { errno = EIO; return -1; }
    return syscall(call, fd);
}
int fsync(int fd) { return sync_or_fail(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_or_fail(SYS_fdatasync, fd); }
"""


def run_with_faults(folder: Path, limit: int, **env: str) -> None:
    """Write until the disk fails and further; check what was acknowledged and what is stored."""
    command = [sys.executable, "-c", FAULTS, str(folder), str(limit)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    acknowledged, refused, after, readable = json.loads(done.stdout)
    assert len(acknowledged) >= 5  # it worked before
    assert refused >= 100
    assert after == 0  # never acknowledged again, although the disk recovers
    assert readable >= len(acknowledged)
    with Reader(folder) as reader:
        stored = [event.version for event in reader.events()]
        assert stored == list(range(1, len(stored) + 1))
        assert set(acknowledged) <= set(stored)
        assert check(reader) == []
    with Store(folder) as store:
        label = Label(node="later", label="x")
        assert store.write("anna", label).version == len(stored) + 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
@pytest.mark.parametrize("limit", [200_000, 300_001])
def test_without_space_on_the_disk_it_stops_acknowledging(tmp_path: Path, limit: int) -> None:
    run_with_faults(tmp_path, limit)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_after_a_failed_sync_it_stops_acknowledging(tmp_path: Path) -> None:
    source, library = tmp_path / "fail.c", tmp_path / "fail.so"
    source.write_text(textwrap.dedent(PRELOAD))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    folder = tmp_path / "run"
    folder.mkdir()
    run_with_faults(folder, 0, LD_PRELOAD=str(library), FAIL_FILE=str(folder / "fail"))
