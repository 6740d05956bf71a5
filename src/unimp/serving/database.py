"""The file labels.db: its tables, how it is opened, and on which file systems it must not be.

The database is in WAL mode, so that readers in other processes see a consistent state while one
process writes. `synchronous=FULL` syncs the WAL at each commit. The table `event` is the truth, and
rows are only added to it. The tables `now`, `edge` and `undone` follow from it (see `state.py`).
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unimp.config.run_files import LABELS
from unimp.data.files import special_kind, sync_folder
from unimp.errors import RunError
from unimp.serving.events import KINDS

APPLICATION_ID = 0x756E6D70  # "unmp"
FORMAT = 1
WAIT = 1.0
"""Seconds to wait for a lock of another connection."""

SCHEMA = f"""
create table actor (
    name text primary key,
    role text not null check (role in ('reader', 'labeler', 'reviewer', 'admin')),
    token_hash blob,
    revoked integer not null default 0
);
create table event (
    version integer primary key,
    at text not null,
    actor text not null references actor (name),
    source text not null,
    kind text not null check (kind in ({", ".join(map(repr, KINDS))})),
    node text,
    target text,
    body text not null,
    undoes integer references event (version) check (undoes < version),
    key text,
    predicted text,
    drawn text not null default '' check (drawn in ('', 'random', 'ranked')),
    hash blob not null
);
create index event_node on event (node, version) where node is not null;
create index event_key on event (actor, key) where key is not null;
create index event_undoes on event (undoes) where undoes is not null;
create index event_target on event (target, version) where target is not null;
create index event_withdrawn on event (target, version) where kind = 'withdraw';
create table now (
    node text primary key,
    label text,
    version integer not null,
    actor text,
    source text,
    changed integer not null
);
create index now_changed on now (changed);
create table edge (
    node text not null,
    target text not null,
    version integer not null,
    changed integer not null,
    primary key (node, target)
);
create index edge_changed on edge (changed);
create table undone (version integer primary key);
create table claim (
    node text primary key,
    actor text not null references actor (name),
    until real not null,
    drawn text not null
);
create index claim_actor on claim (actor, until);
create table sample (node text primary key, item integer not null);
create table setting (name text primary key, value integer not null);
"""

NETWORK = re.compile(
    r"nfs\d*|cifs|smb\d*|smbfs|9p|drvfs|afs|ceph|coda|ncpfs|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2"
    r"|davfs2?|fuse\.(sshfs|glusterfs|ceph|s3fs|gcsfuse|rclone|davfs2?|curlftpfs|juicefs|mfs\w*)"
)
MOUNTS = Path("/proc/self/mounts")


def network_type(folder: Path, mounts: str) -> str:
    """The type of the network file system that contains a folder; empty for a local one.

    mounts: the text of /proc/self/mounts.
    """
    path, best, kind = folder.resolve(), -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # The kernel writes spaces and tabs of a path as octal numbers.
        name = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[1])
        # A later mount on the same path hides the earlier one.
        if path.is_relative_to(name) and len(Path(name).parts) >= best:
            best, kind = len(Path(name).parts), fields[2]
    return kind if NETWORK.fullmatch(kind) else ""


def refuse_network(folder: Path) -> None:
    """Refuse a folder on a network file system, where WAL mode can lose or damage data."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # not Linux
        return
    if kind := network_type(folder, mounts):
        raise RunError(
            f"{folder} is on a network file system ({kind}), where labels could be lost. Copy the "
            "run to a local disk and start the service there."
        )


def open_for_writing(folder: Path) -> sqlite3.Connection:
    """Open or create the database of a run folder; the caller holds its lock."""
    path = folder / LABELS
    if special := special_kind(path):
        raise RunError(f"{path} is {special}, not a file. Remove it, or restore a backup.")
    refuse_network(folder)
    # The file contains hashes of tokens; SQLite gives its other files the same permissions.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    sync_folder(folder)
    db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
    with _closed_on_error(db, path):
        _prepare(db, path)
    return db


@contextmanager
def _closed_on_error(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Close a database that cannot be used, and state what to do."""
    try:
        yield
    except sqlite3.Error as error:
        db.close()
        of_disk = getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        )
        what = "Check the disk and its free space" if of_disk else "Restore a backup"
        raise RunError(f"{path} cannot be opened ({error}). {what}.") from error
    except BaseException:
        db.close()
        raise


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    _set_up(db)
    is_new = not db.execute("select 1 from sqlite_master").fetchone()
    if not is_new:
        check_format(db, path)
    (mode,) = db.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise RunError(f"{path} cannot use WAL mode. Copy the run to a local disk.")
    if is_new:
        db.executescript(
            f"begin immediate; {SCHEMA} pragma application_id = {APPLICATION_ID};"
            f"pragma user_version = {FORMAT}; commit;"
        )
    # Frames that a failed sync left in the page cache alone get onto the disk before anything else
    # is acknowledged.
    db.execute("pragma wal_checkpoint(truncate)").fetchone()


def _set_up(db: sqlite3.Connection) -> None:
    for pragma in (
        "synchronous = full",
        "fullfsync = on",
        "checkpoint_fullfsync = on",
        "foreign_keys = on",
        "trusted_schema = off",
        "cell_size_check = on",
        "wal_autocheckpoint = 0",  # its errors would be ignored; the writer does it
    ):
        db.execute(f"pragma {pragma}")


def check_format(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a database of another program or of a later version."""
    (application,) = db.execute("pragma application_id").fetchone()
    (version,) = db.execute("pragma user_version").fetchone()
    if application != APPLICATION_ID:
        raise RunError(f"{path} is not a database of unimp. Move it to another folder.")
    if version != FORMAT:
        raise RunError(
            f"{path} has the format {version}; this version of unimp reads {FORMAT}. Use the "
            "version of unimp that wrote it."
        )


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing database read-only, also while another process writes it."""
    if special := special_kind(path):
        raise RunError(f"{path} is {special}, not a file.")
    if not path.exists():
        raise RunError(
            f"there is no file {path}. Start the service once on this run, or name another run."
        )
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False)
    with _closed_on_error(db, path):
        db.execute("pragma query_only = on")
        db.execute("pragma trusted_schema = off")
        check_format(db, path)
    return db
