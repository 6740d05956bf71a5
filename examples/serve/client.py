"""A client of the label service that needs only the standard library.

    unimp serve runs/mine
    python examples/serve/client.py http://127.0.0.1:8765 NODE LABEL

With tokens, set the variable TOKEN.
"""

import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import quote

TRIES = 20


class Client:
    """Reads predictions and writes labels; every call is repeated until it is answered."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address.rstrip("/")
        self._who = {"Authorization": f"Bearer {token}"} if token else {"Origin": self.address}
        self.version = 0  # of the last write: later reads include it

    def node(self, node: str) -> dict:
        """The label and the prediction of a node, including everything this client has written."""
        found = self.call("GET", f"/v1/nodes/{quote(node, safe='')}?min_version={self.version}")
        return found["node"]

    def label(self, node: str, label: str) -> int:
        """Give a label; returns its version. It is on the disk of the server."""
        written = self.call("PUT", f"/v1/nodes/{quote(node, safe='')}/label", {"label": label})
        self.version = max(self.version, written["version"])
        return written["version"]

    def call(self, method: str, path: str, body: object = None) -> dict:
        # One key for all attempts: a write that is repeated is stored once.
        headers = {**self._who, "Content-Type": "application/json"}
        if method != "GET":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(TRIES):
            request = urllib.request.Request(self.address + path, data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                problem = json.load(error)
                if error.code not in (429, 503) or attempt == TRIES - 1:
                    raise SystemExit(f"{method} {path}: {problem['detail']}") from None
                time.sleep(float(error.headers.get("Retry-After", 1)))
            except urllib.error.URLError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.5)
        raise AssertionError("unreachable")


def main(address: str, node: str, label: str) -> None:
    client = Client(address, os.environ.get("TOKEN", ""))
    before = client.node(node)
    print(f"{node}: {before['prediction']}, {before['confidence']}")
    print(f"stored as version {client.label(node, label)}")
    print(f"{node}: {client.node(node)['label']}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
