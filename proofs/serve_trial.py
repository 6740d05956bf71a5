"""Try what a newcomer does: install the service, start the demo, and give the first label.

    python proofs/serve_trial.py        → proofs/results/serve_trial.json

The checkout is copied without its build. Times are those of this machine, with the packages that
its pip can reach or has cached; the result states how many cores it has and how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "proofs" / "results" / "serve_trial.json"
MOST = 120.0
"""Seconds from the install to the first label."""


def call(address: str, path: str, method: str = "GET", body: Any = None) -> Any:
    headers = {"Origin": address, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def until(what: Any, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            return what()
        except (OSError, urllib.error.HTTPError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def try_it(folder: Path) -> list[dict[str, Any]]:
    """The steps with their seconds."""
    steps: list[dict[str, Any]] = []
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    (folder / "checkout").mkdir()
    subprocess.run(["tar", "-x"], input=archive.stdout, cwd=folder / "checkout", check=True)

    def step(words: str, command: list[str]) -> None:
        started = time.monotonic()
        subprocess.run(command, cwd=folder / "checkout", env=env, check=True)
        steps.append({"step": words, "seconds": round(time.monotonic() - started, 1)})

    step("python -m venv", [sys.executable, "-m", "venv", str(folder / "venv")])
    pip = [str(folder / "venv/bin/pip"), "install", "--quiet", "--constraint", "constraints.txt"]
    step("pip install '.[serve]'", [*pip, ".[serve]"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    started = time.monotonic()
    command = [str(folder / "venv/bin/unimp"), "serve", "--demo", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    try:
        item = until(lambda: call(address, "/v1/queue/next", "POST", {}))["item"]
        took = time.monotonic() - started
        steps.append({"step": "unimp serve --demo, first node", "seconds": round(took, 1)})
        name = urllib.request.quote(item["node"]["id"], safe="")  # type: ignore[attr-defined]
        started = time.monotonic()
        label = {"label": item["node"]["prediction"]}
        version = call(address, f"/v1/nodes/{name}/label", "PUT", label)["version"]
        until(lambda: call(address, f"/v1/nodes/{name}?min_version={version}"))
        took = time.monotonic() - started
        steps.append({"step": "first label stored, predictions updated", "seconds": round(took, 2)})
    finally:
        server.terminate()
        server.wait(30)
    started = time.monotonic()
    server = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)
    try:
        kept = until(lambda: call(address, f"/v1/nodes/{name}"))["node"]["label"]
        assert kept == item["node"]["prediction"], "the label is gone after a restart"
        took = time.monotonic() - started
        steps.append({"step": "started again, first answer", "seconds": round(took, 1)})
    finally:
        server.terminate()
        server.wait(30)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        steps = try_it(Path(temporary))
    total = round(sum(step["seconds"] for step in steps[:4]), 1)
    for step in steps:
        print(f"{step['seconds']:7.1f} s  {step['step']}")
    print(f"{total:7.1f} s  from nothing to the first label")
    stored = {
        "command": "python proofs/serve_trial.py",
        "code": code_origin(),
        "steps": steps,
        "seconds to the first label": total,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    write_atomically(given.out, (json.dumps(stored, indent=1) + "\n").encode())
    sys.exit(0 if total <= MOST else 1)


if __name__ == "__main__":
    main()
