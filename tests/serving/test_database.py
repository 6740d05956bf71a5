"""The file: where it may be, and which files are refused."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from unimp.errors import RunError
from unimp.serving import database
from unimp.serving.database import network_type
from unimp.serving.reader import Reader
from unimp.serving.store import Store

MOUNTS = r"""
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb /home/local\040disk xfs rw 0 0
//host/share /mnt/share cifs rw 0 0
C: /mnt/c 9p rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
tmpfs /mnt/over tmpfs rw 0 0
server:/over /mnt/over nfs rw 0 0
/dev/sdc /mnt/usb fuseblk rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/runs/1", ""),
        ("/home/anna/run", "nfs4"),
        ("/home", "nfs4"),
        ("/homes/run", ""),
        ("/home/local disk/run", ""),
        ("/mnt/share/run", "cifs"),
        ("/mnt/c/run", "9p"),
        ("/mnt/ssh/run", "fuse.sshfs"),
        ("/mnt/over/run", "nfs"),
        ("/mnt/usb/run", ""),
    ],
)
def test_network_file_systems_are_recognized(folder: str, kind: str) -> None:
    assert network_type(Path(folder), MOUNTS) == kind


def test_a_folder_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("server:/x / nfs4 rw 0 0\n")
    monkeypatch.setattr(database, "MOUNTS", mounts)
    with pytest.raises(RunError, match=r"nfs4.*local disk"):
        Store(tmp_path)
    assert not (tmp_path / "labels.db").exists()
    monkeypatch.undo()
    Store(tmp_path).close()  # the lock was released


def test_the_file_states_what_it_is_and_syncs_every_commit(store: Store) -> None:
    def settings(db: sqlite3.Connection) -> list[int | str]:
        names = ("application_id", "user_version", "journal_mode", "synchronous", "foreign_keys")
        return [db.execute(f"pragma {name}").fetchone()[0] for name in names]

    found = store.writer.submit(settings).result()
    assert found == [database.APPLICATION_ID, database.FORMAT, "wal", 2, 1]
    if sys.platform != "win32":
        for path in store.folder.glob("labels.db*"):
            assert path.stat().st_mode & 0o077 == 0  # it contains hashes of tokens


@pytest.mark.parametrize("what", ["another program", "a later format", "not a database", "a link"])
def test_other_files_are_refused_and_unchanged(tmp_path: Path, what: str) -> None:
    path = tmp_path / "labels.db"
    if what == "not a database":
        path.write_text("node,label\na,x\n" * 1000)
    elif what == "a link":
        (tmp_path / "elsewhere").write_text("")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        Store(tmp_path).close()
        db = sqlite3.connect(path)
        name = "application_id" if what == "another program" else "user_version"
        db.execute(f"pragma {name} = 7")
        db.close()
    before = path.read_bytes()
    for open_it in (Store, Reader):
        with pytest.raises(RunError, match=r"labels\.db"):
            open_it(tmp_path)
    assert path.read_bytes() == before


def test_reading_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no file"):
        Reader(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_wal_stays_small(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from unimp.serving import writer
    from unimp.serving.events import Label

    monkeypatch.setattr(writer, "WAL_BYTES", 100_000)
    monkeypatch.setattr(store.writer, "_checkpoint_at", 100_000)
    sizes = []
    for number in range(60):
        store.write("labeler", Label(node=str(number), label="x"))
        sizes.append((store.folder / "labels.db-wal").stat().st_size)
    assert max(sizes) < 300_000


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on file sizes")
def test_a_full_disk_at_the_start_is_named_as_such(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from unimp.serving.store import Store\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))\n"
        "Store(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "RunError" in done.stderr
    assert "free space" in done.stderr
    with Store(tmp_path) as store:
        assert store.reader.head() == 0
