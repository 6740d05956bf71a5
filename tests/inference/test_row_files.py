"""Rows in temporary files: what was written is read, and nothing is left on the disk."""

from pathlib import Path

import pytest
import torch

from unimp.inference import row_files
from unimp.inference.row_files import RowFile, map_rows


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows, file = torch.randn(50, 3), RowFile(50, 3, tmp_path)
    for begin in (20, 0, 40, 30, 10):
        file.write(begin, rows[begin : begin + 10])
    assert torch.equal(file.read(7, 33), rows[7:33])
    into = torch.empty(100, 3)
    assert torch.equal(file.read(40, 50, into), rows[40:])
    assert torch.equal(file.mapped, rows)
    assert not list(tmp_path.iterdir())
    mapped = file.mapped
    file.close()
    assert torch.equal(mapped, rows)


def test_a_file_with_a_name_is_shared_and_then_removed(tmp_path: Path) -> None:
    one, other = (RowFile(4, 2, tmp_path, tmp_path / "rows") for _ in range(2))
    one.write(0, torch.ones(2, 2))
    other.write(2, torch.full((2, 2), 2.0))
    one.unlink()
    assert torch.equal(one.mapped, other.read(0, 4))
    assert one.mapped.sum() == 12
    again = RowFile(4, 2, tmp_path, tmp_path / "rows")
    again.write(0, torch.zeros(4, 2))
    one.close()  # must not remove the later file of the same name
    assert (tmp_path / "rows").exists()
    assert other.mapped.sum() == 12
    other.close()
    again.close()


@pytest.mark.parametrize("memory", [1, 10**12])
def test_functions_of_rows_give_the_same_by_slices_and_in_files(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, factor = torch.randn(1000, 7), torch.randn(1000)

    def scaled_softmax(rows: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return torch.softmax(rows * factor[:, None], 1)[:, :5]

    whole = map_rows(scaled_softmax, rows, factor, memory=memory)
    monkeypatch.setattr(row_files, "SLICE", 1111)
    assert torch.equal(map_rows(scaled_softmax, rows, factor, memory=memory), whole)
