"""Time the demo after the install and write benchmarks/results/demo.json."""

from __future__ import annotations

import json
import os
import platform
import runpy
from pathlib import Path

import torch

from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory
from unimp.tracking.origin import code_origin

HERE = Path(__file__).parent


def main() -> None:
    keep_freed_memory()
    seconds = runpy.run_path(str(HERE.parent / "examples" / "demo.py"))["main"]()
    result = {
        "command": "python benchmarks/demo.py",
        "seconds": round(seconds, 1),
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "code": code_origin(),
    }
    write_atomically(HERE / "results" / "demo.json", (json.dumps(result, indent=1) + "\n").encode())
    print(f"figure demo_seconds {seconds:.0f}")


if __name__ == "__main__":
    main()
