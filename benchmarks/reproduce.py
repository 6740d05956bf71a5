"""Time a quick check of every table and figure on the bundled graph.

python benchmarks/reproduce.py      → results/reproduce.json
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time

from results import FOLDER
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

COMMAND = "unimp reproduce all --task debian --quick --seeds 0-1 --jobs 2"


def main() -> None:
    words = ["-m", "unimp", *COMMAND.split()[1:]]
    busy = os.getloadavg()[0] > 0.5
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words, "--out", folder], check=True)
        seconds = time.perf_counter() - began
    took = {
        "command": COMMAND,
        "seconds": round(seconds),
        "code": code_origin(),
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})"
        + (", with other work running" if busy else ""),
    }
    print(f"figure reproduce-seconds {seconds:.0f}")
    write_atomically(FOLDER / "reproduce.json", (json.dumps(took, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
