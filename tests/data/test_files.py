"""Files that are whole or absent."""

import errno
import os
import stat
from pathlib import Path

import pytest

from unimp.data.files import write_atomically


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


def test_what_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "there" / "real.csv")
    write_atomically(link, b"rows")
    assert link.is_symlink()
    assert (tmp_path / "there" / "real.csv").read_bytes() == b"rows"


def test_a_folder_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path / "runs", pipe):
        with pytest.raises(OSError, match="a folder or a device"):
            write_atomically(place, b"rows")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe", "runs"]
    assert pipe.is_fifo()
