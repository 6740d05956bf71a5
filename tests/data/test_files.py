"""Files that are whole or absent."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from unimp.data.files import read_regular, write_atomically


def test_a_file_is_written_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file.json"
    for data in (b"one", b"a longer two", b""):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("old", [None, b"the old one"])
def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None
) -> None:
    path = tmp_path / "file.json"
    if old is not None:
        path.write_bytes(old)

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"the new one")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if old is None else [old])


def test_files_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EFBIG, "raise the limit on file sizes"),
        (errno.EACCES, "Allow writing there"),
        (errno.EIO, "Choose another path"),
    ],
)
def test_a_write_that_fails_names_the_file_and_what_to_do(
    number: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=fix) as message:
        write_atomically(tmp_path / "file.json", b"data")
    assert message.value.errno == number
    assert message.value.filename == str(tmp_path / "file.json")
    assert os.strerror(number) in message.value.strerror


def test_a_folder_that_cannot_be_made_is_told_by_the_file_that_was_to_be(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError, match="cannot be written") as message:
        write_atomically(tmp_path / "taken" / "file.json", b"data")
    assert message.value.filename == str(tmp_path / "taken" / "file.json")


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_refused_and_its_target_stays_as_it_is(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    if exists:
        target.write_bytes(b"rows")
    link.symlink_to(target)
    with pytest.raises(OSError, match="a link"):
        write_atomically(link, b"other rows")
    assert link.is_symlink()
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b"rows"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("real")])
def test_only_regular_files_are_read_and_nothing_waits(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "real").write_bytes(b"rows")
    assert read_regular(tmp_path / "real", 4) == b"rows"
    with pytest.raises(OSError, match="4 bytes, more than the 3 expected"):
        read_regular(tmp_path / "real", 3)
    make(tmp_path / "special")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "special", 4)


def test_a_folder_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path / "runs", pipe):
        with pytest.raises(OSError, match=r"it is a (folder|pipe or a device)"):
            write_atomically(place, b"rows")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "runs"]
    assert pipe.is_fifo()
