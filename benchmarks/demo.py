"""Time the demo after the install, and store the time of each part and the table it prints.

    python benchmarks/demo.py

writes benchmarks/results/demo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "demo.json")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        demo = HERE.parent.resolve() / "examples" / "demo.py"
        started = time.perf_counter()
        subprocess.run([sys.executable, demo], cwd=folder, check=True)
        seconds = time.perf_counter() - started
        printed = json.loads(Path(folder, "runs", "demo", "demo.json").read_text(encoding="utf-8"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [{**row, "seconds": round(row["seconds"], 1)} for row in printed["rows"]]
    result = {
        "command": "python benchmarks/demo.py",
        "seconds": round(seconds, 1),  # of the whole process
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "scored": printed["scored"],
        "rows": rows,
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "code": code_origin(),
    }
    write_atomically(out, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"figure demo_seconds {seconds:.0f}")


if __name__ == "__main__":
    main()
