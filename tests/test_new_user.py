"""A new user's path, from outside the package: two CSV files, then one command after another.

`python proofs/new_user.py` walks it on the whole bundled graph; here it is on a part of it.
"""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_two_csv_files_become_answers_under_their_own_ids(tmp_path: Path) -> None:
    walk = runpy.run_path(str(ROOT / "proofs" / "new_user.py"))["walk"]
    steps = walk(tmp_path, packages=1_000, settings=["train.epochs=3", "model.width=8"])
    assert [step["command"].split()[1] for step in steps] == [
        "init",
        "check",
        "train",
        "predict",
        "explain",
        "audit",
        "suggest",
        "predict",
    ]
