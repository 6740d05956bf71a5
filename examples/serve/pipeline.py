"""A pipeline: push a table of labels, then follow every prediction that changes.

    unimp serve runs/mine
    python examples/serve/pipeline.py http://127.0.0.1:8765 labels.csv changed.jsonl

labels.csv has the columns node and label. The file of changes gets one line per node whose label or
prediction changed. The version that was read last is stored beside it, so the pipeline can be
stopped and started at any time. With tokens, set the variable TOKEN.
"""

import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

WAIT = 1.0  # seconds between two questions


def call(address: str, method: str, path: str, body: bytes | None = None, **headers: str) -> dict:
    token = os.environ.get("TOKEN", "")
    headers |= {"Authorization": f"Bearer {token}"} if token else {"Origin": address}
    while True:
        request = urllib.request.Request(address + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise SystemExit(f"{path}: {error.read().decode()}") from None
            time.sleep(float(error.headers.get("Retry-After", 1)))


def push(address: str, labels: Path) -> int:
    """Store all labels of a file or none; returns the version. The same file is stored once."""
    body = labels.read_bytes()
    headers = {
        "Content-Type": "text/csv",
        "Idempotency-Key": hashlib.sha256(body).hexdigest(),
    }
    # The source names the file, so that all of its labels can be withdrawn at once later.
    path = "/v1/labels?" + urlencode({"source": labels.name})
    return call(address, "POST", path, body, **headers)["version"]


def changes(address: str, since: int, min_version: int = 0) -> tuple[list[dict], int]:
    """The nodes that changed since a version, and the version to continue from."""
    nodes: list[dict] = []
    cursor = ""
    while True:
        query = {"since": since, "min_version": min_version, "cursor": cursor}
        found = call(address, "GET", "/v1/changes?" + urlencode(query))
        if found["reset"]:  # the server does not remember changes that are so old
            return every_node(address), found["version"]
        nodes += found["nodes"]
        if found["next"] is None:
            return nodes, found["version"]
        cursor = found["next"]


def every_node(address: str) -> list[dict]:
    nodes: list[dict] = []
    while found := call(address, "GET", f"/v1/nodes?limit=1000&offset={len(nodes)}")["nodes"]:
        nodes += found
    return nodes


def main(address: str, labels: Path, out: Path, rounds: int) -> None:
    state = out.with_suffix(".version")
    since = int(state.read_text()) if state.exists() else 0
    version = push(address, labels)
    print(f"{labels}: stored as version {version}")
    for number in range(rounds):
        nodes, since = changes(address, since, version)
        with out.open("a", encoding="utf-8") as file:
            for node in nodes:
                file.write(json.dumps(node) + "\n")
        state.write_text(str(since))
        print(f"{len(nodes)} changes up to version {since}", flush=True)
        if number < rounds - 1:
            time.sleep(WAIT)


if __name__ == "__main__":
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else sys.maxsize
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]), Path(sys.argv[3]), rounds)
