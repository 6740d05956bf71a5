"""Send random requests, built from the OpenAPI description, to the live label service.

    python proofs/serve_fuzz.py [--requests 10000] [--seed 0]   → proofs/results/serve_fuzz.json

Each request chooses an operation of /openapi.json and draws its parameters, headers and body from
their schemas: legal values, limits, values of other types, and text that is hard to handle. The
service may refuse a request with 4xx, or with 503 if it is busy. Every other 5xx, an ended
connection, and a traceback in the output of the service count as failures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from serve_hostile import Target, serving, train

import unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "serve_fuzz.json"
LEFT_OUT = ("/v1/events",)
"""A stream that does not end; `serve_hostile.py` and the tests listen to it."""
RARE = {("POST", "/v1/retrain"): 0.02}
"""Operations that take long, and how often they are sent if they are drawn."""
METHODS = ("get", "put", "post", "delete", "patch")
TEXTS = (
    *("", " ", "n0", "n1", "n17", "n59", "red", "green", "blue", "nobody", "0", "-1", "1e999"),
    *(
        "<script>alert(1)</script>",
        "' or 1=1 --",
        "../../labels.db",
        "%00",
        "%2e%2e",
        "a/b",
        "a?b#c",
    ),
    *("é", "漢字", "💥", "\u202e", "\u2028", "a\x00b", "\x1b[2J", "a\nb", "\ud800", "NaN", "null"),
    *("x" * 100, "x" * 511, "x" * 513, "x" * 5_000, "=1+1", "{{7*7}}", "${7*7}", "new node"),
)
NUMBERS = (0, 1, -1, 2, 50, 1000, 2**31, 2**53, 2**63, 10**30, 0.5, -0.5, 1e308)
JUNK: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": {}}, [None], *NUMBERS, *TEXTS[:12])
STOPS = 20  # failures that are stored


class Fuzzer:
    """Draws requests for the operations of a description."""

    def __init__(self, description: dict[str, Any], seed: int) -> None:
        self._draw = random.Random(seed)
        self._schemas = description.get("components", {}).get("schemas", {})
        self.operations = [
            (method.upper(), path, operation)
            for path, methods in description["paths"].items()
            for method, operation in methods.items()
            if method in METHODS and path not in LEFT_OUT
        ]

    def request(self) -> tuple[str, str, dict[str, str], bytes | None, str]:
        """A method, a path, headers, a body, and the operation that was drawn."""
        draw = self._draw
        while True:
            method, path, operation = draw.choice(self.operations)
            if draw.random() < RARE.get((method, path), 1.0):
                break
        name = f"{method} {path}"
        query: list[tuple[str, str]] = []
        headers: dict[str, str] = {}
        for parameter in operation.get("parameters", ()):
            value = self._parameter(parameter.get("schema", {}))
            if parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", quoted(value, draw))
            elif parameter["in"] == "query" and draw.random() < 0.4:
                query.append((parameter["name"], value))
            elif parameter["in"] == "header" and draw.random() < 0.3:
                headers[parameter["name"]] = one_line(value)
        if draw.random() < 0.05:
            query.append((draw.choice(("x", "min_version", "limit")), draw.choice(TEXTS)))
        if draw.random() < 0.02:
            path += draw.choice(("/", "/..", "//", "/x", "%2f", "%"))
        if query:
            path += "?" + urlencode(query, errors="surrogatepass")
        body, kind = self._body(operation)
        if kind:
            headers["Content-Type"] = kind
        if draw.random() < 0.01:
            method = draw.choice(("GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"))
        return method, path, headers, body, name

    def _parameter(self, schema: dict[str, Any]) -> str:
        value = self.value(schema) if self._draw.random() < 0.8 else self._draw.choice(TEXTS)
        return value if isinstance(value, str) else json.dumps(value)

    def _body(self, operation: dict[str, Any]) -> tuple[bytes | None, str]:
        content = operation.get("requestBody", {}).get("content", {})
        draw = self._draw
        if not content:
            return (b"{}", "application/json") if draw.random() < 0.05 else (None, "")
        kind = draw.choice(list(content))
        schema = content[kind]["schema"]
        if "json" in kind:
            value = self.value(schema) if draw.random() < 0.9 else draw.choice(JUNK)
            body = json.dumps(value).encode()
        else:
            rows = [(draw.choice(TEXTS), draw.choice(TEXTS)) for _ in range(draw.randrange(4))]
            body = "\n".join(["node,label", *map(",".join, rows)]).encode("utf-8", "surrogatepass")
        if draw.random() < 0.1:
            body = self._damaged(body)
        if draw.random() < 0.03:
            kind = draw.choice(("text/plain", "application/xml", "", "application/json; charset=x"))
        return body, kind

    def _damaged(self, body: bytes) -> bytes:
        draw = self._draw
        place = draw.randrange(len(body) + 1)
        match draw.randrange(4):
            case 0:
                return body[:place]
            case 1:
                return body[:place] + bytes(draw.randrange(256) for _ in range(3)) + body[place:]
            case 2:
                return b"[" * draw.randrange(2_000) + body
            case _:
                return body * 2

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value for a schema, which is legal in most cases."""
        draw = self._draw
        if draw.random() < 0.06 or depth > 6:
            return draw.choice(JUNK)
        while "$ref" in schema or "$defs" in schema:
            self._schemas |= schema.get("$defs", {})
            if "$ref" not in schema:
                break
            schema = self._schemas[schema["$ref"].rsplit("/", 1)[-1]]
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.value(draw.choice(schema[several]), depth + 1)
        if "const" in schema or "enum" in schema:
            return schema.get("const") or draw.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                one = schema.get("items", {})
                return [self.value(one, depth + 1) for _ in range(draw.choice((0, 1, 1, 2, 5)))]
            case "integer":
                low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
                high = schema.get("maximum", schema.get("exclusiveMaximum", 1_000))
                return draw.choice((low, high, low - 1, high + 1, draw.randint(0, 30)))
            case "number":
                return draw.choice((0.0, 1.0, -1.5, draw.random(), draw.gauss(0, 100)))
            case "boolean":
                return draw.random() < 0.5
            case "null":
                return None
            case "string":
                return draw.choice(TEXTS) if draw.random() < 0.5 else f"n{draw.randrange(60)}"
        return draw.choice(JUNK)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        draw, found = self._draw, {}
        for name, part in schema.get("properties", {}).items():
            if draw.random() < (0.97 if name in schema.get("required", ()) else 0.5):
                found[name] = self.value(part, depth + 1)
        if isinstance(more := schema.get("additionalProperties"), dict):
            names = ("size", "kind", "weight", "n0", "n3", draw.choice(TEXTS))
            for name in draw.sample(names, draw.randrange(4)):
                found[name] = self.value(more, depth + 1)
        if draw.random() < 0.03:
            found[draw.choice(TEXTS)] = draw.choice(JUNK)
        return found


def quoted(value: str, draw: random.Random) -> str:
    """A part of a path; sometimes characters stay that should be encoded."""
    safe = "/?#%&=" if draw.random() < 0.1 else ""
    return quote(value, safe=safe, errors="surrogatepass") or "%20"


def one_line(value: str) -> str:
    return "".join(c for c in value if " " <= c <= "ÿ" and c != "\x7f")


def attack(target: Target, fuzzer: Fuzzer, number: int, workers: int = 4) -> dict[str, Any]:
    """Send requests from several threads; count statuses, and keep what must not happen."""
    lock, statuses, operations, failures = threading.Lock(), Counter(), Counter(), []  # type: ignore[var-annotated]
    left = number

    def work() -> None:
        nonlocal left
        while True:
            with lock:
                if left <= 0 or len(failures) >= STOPS:
                    return
                left -= 1
                method, path, headers, body, name = fuzzer.request()
            try:
                reply = target.send(method, path, body, target.allowed | headers)
                status = reply.status
                shown = reply.body[:300].decode("utf-8", "replace")
            except OSError as error:
                status, shown = 0, f"{type(error).__name__}: {error}"
            with lock:
                statuses[status] += 1
                operations[name] += 1
                if status == 0 or (status >= 500 and status != 503):
                    sent = (body or b"")[:500].decode("utf-8", "replace")
                    failures.append(
                        {"request": f"{method} {path[:300]}", "headers": headers, "body": sent}
                        | {"status": status, "response": shown}
                    )

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "requests": statuses.total(),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "operations": dict(sorted(operations.items())),
        "failures": failures,
    }


def fuzz(folder: Path, run: Path, number: int, seed: int) -> dict[str, Any]:
    """Attack a server of a copy of a run; the result also says what its output contains."""
    copy = folder / "fuzzed"
    shutil.copytree(run, copy)
    started = time.monotonic()
    with serving(copy) as target:
        description = json.loads(target.send("GET", "/openapi.json").body)
        found = attack(target, Fuzzer(description, seed), number)
        end = time.monotonic() + 60
        while target.send("GET", "/readyz").status != 200 and time.monotonic() < end:
            time.sleep(0.2)
        found["ready afterwards"] = target.send("GET", "/readyz").status == 200
    output = target.output.read_text(errors="replace")
    found["tracebacks"] = output.count("Traceback")
    found["seconds"] = round(time.monotonic() - started, 1)
    return found | {"output": output}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = fuzz(folder, train(folder), given.requests, given.seed)
    output = found.pop("output")
    failed = len(found["failures"]) + found["tracebacks"] + (not found["ready afterwards"])
    for failure in found["failures"]:
        print(json.dumps(failure, indent=1))
    if found["tracebacks"]:
        print(output[-6_000:])
    print(f"{found['requests']:,} requests in {found['seconds']} s, {failed} failures")
    print(found["statuses"])
    stored = {
        **found,
        "seed": given.seed,
        "unimp": unimp.__version__,
        "code": code_origin(),
        "command": f"python proofs/serve_fuzz.py --requests {given.requests} --seed {given.seed}",
    }
    write_atomically(given.out, (json.dumps(stored, indent=1) + "\n").encode())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
