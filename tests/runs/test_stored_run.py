"""A run folder that an earlier version wrote: every later version must load it.

Each folder was written by its own version; this command writes one for the current version, from
the task of another one:

    python tests/runs/test_stored_run.py tests/runs/stored/version-0.1.0/task.npz NEW_FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import unimp

STORED = sorted((Path(__file__).parent / "stored").iterdir())


@pytest.mark.parametrize("stored", STORED, ids=[folder.name for folder in STORED])
def test_a_stored_run_loads_and_predicts_as_it_did(stored: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    folder = shutil.copytree(stored, tmp_path / "run")
    run = unimp.load_run(folder, device="cpu")
    before = pyarrow.parquet.ParquetFile(stored / "predictions.parquet").read()
    now = run.predictions(reveal="train").to_arrow()
    assert now.column_names == before.column_names
    for name in before.column_names:
        if name.startswith("p_"):
            np.testing.assert_allclose(now[name].to_numpy(), before[name].to_numpy(), atol=1e-5)
        elif name != "confidence":
            assert now[name].to_pylist() == before[name].to_pylist(), name
    scores = json.loads((stored / "metrics.json").read_text(encoding="utf-8"))["scores"]
    assert run.evaluate() == pytest.approx(scores["train"])
    assert run.report().is_file()


if __name__ == "__main__":
    unimp.run(
        unimp.load_task(sys.argv[1]),
        out=sys.argv[2],
        settings={
            "model.layers": 2,
            "model.width": 4,
            "train.epochs": 5,
            "train.device": "cpu",
        },
        report=False,
    )
