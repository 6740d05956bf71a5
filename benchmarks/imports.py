"""How long `import unimp` takes beside `import torch`, each in fresh interpreters by turns.

    python benchmarks/imports.py

In seconds of the processor, which other programs on the machine hardly change. Prints a line
`figure NAME VALUE` for each and writes them, with where they were measured, to
results/imports.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from measure import FOLDER, Figures, seconds

CASES = {
    "torch": "import torch",
    "unimp": "import unimp",
    "classifier": "from unimp import UniMPClassifier",
}


def start(program: str) -> None:
    """A fresh interpreter that does nothing else."""
    subprocess.run([sys.executable, "-c", program], check=True)


def processor() -> float:
    """Seconds of the processor that finished children have taken."""
    taken = os.times()
    return taken.children_user + taken.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    calls = {name: (lambda program=program: start(program)) for name, program in CASES.items()}
    taken = seconds(calls, repeats=options.repeats, device="cpu", clock=processor)
    figures = Figures("imports", options.out)
    figures.add(
        "import_torch", taken["torch"], "import torch in a fresh interpreter, processor seconds"
    )
    figures.add(
        "import_unimp", taken["unimp"], "import unimp in a fresh interpreter, processor seconds"
    )
    figures.add(
        "import_ratio", taken["unimp"] / taken["torch"], "import unimp by import torch", "≤ 1.3"
    )
    figures.add(
        "import_classifier_ratio",
        taken["classifier"] / taken["torch"],
        "importing UniMPClassifier, and with it scikit-learn, by import torch",
    )


if __name__ == "__main__":
    main()
