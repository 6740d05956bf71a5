"""Attack the live label service, one case at a time.

    python proofs/serve_hostile.py [--out FILE]        → proofs/results/serve_hostile.json

Two servers are started by `unimp serve`: one for this computer alone, one with tokens. Each case
sends what a client should never send and lists the statuses that are right. A case succeeds for the
attacker if another status is returned, if an event is stored that should not be, or if the case
itself finds what it looks for. At the end, the output of the servers must contain neither a token
nor a traceback, and both servers must still answer.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from live_page import free_port

import unimp
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "serve_hostile.json"
COLORS = ("red", "green", "blue")
SETTINGS: dict[str, Any] = {
    "train.epochs": 3,
    "model.width": 8,
    "model.layers": 2,
    "train.device": "cpu",
    "ensemble.portfolio": "none",
}
REFUSED = (400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 421, 422, 429, 431, 501)
MARKUP = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "javascript:alert(1)")
FORMULAS = ("=1+1", "+1+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(1+1)", "\t=1", "'=1+1")


@dataclass
class Target:
    """A running server; its output is kept."""

    port: int
    output: Path
    token: str = ""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        **more: str,
    ) -> Reply:
        """One request with exactly these headers beside Host; a body that is not bytes is JSON."""
        given = {"Host": self.host, "Connection": "close", **(headers or {}), **more}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        if body is not None:
            given.setdefault("Content-Length", str(len(body)))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in given.items())
        return self.raw(head.encode("latin-1", "replace") + b"\r\n" + (body or b""))

    def write(self, path: str, body: Any, method: str = "POST") -> Reply:
        """A write of somebody who may write."""
        return self.send(method, path, body, self.allowed)

    @property
    def allowed(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {"Origin": self.origin}

    def raw(self, *parts: bytes, wait: float = 0.0, timeout: float = 60.0) -> Reply:
        """Send bytes, with pauses between the parts; an ended connection without a reply is 0."""
        reply = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as link:
            try:
                for part in parts:
                    link.sendall(part)
                    time.sleep(wait)
            except OSError:
                pass  # the server has answered and closed before everything was sent
            with suppress(OSError):
                while piece := link.recv(1 << 16):
                    reply += piece
                    if len(reply) > 1 << 22:
                        break
        head, _, body = reply.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head.startswith(b"HTTP/1.") else 0
        return Reply(status, head.decode("latin-1"), body)

    def head(self) -> int:
        """The last version that is stored."""
        reply = self.send("GET", "/v1/log?limit=1", headers=self.allowed)
        return int(json.loads(reply.body)["acknowledged"])


@dataclass
class Reply:
    status: int
    head: str
    body: bytes = b""


@dataclass
class Servers:
    """What the cases attack. people: role → token."""

    local: Target
    tokens: Target
    people: dict[str, str] = field(default_factory=dict)


@dataclass
class Case:
    """What is attacked, what is sent, which statuses are right, and whether it may store events."""

    group: str
    name: str
    attack: Callable[[Servers], Reply | str]
    right: tuple[int, ...] = REFUSED
    stores: bool = False


def run_case(case: Case, servers: Servers) -> dict[str, Any]:
    """Attack once; `success` says how the attacker succeeded, and is empty otherwise."""
    before = [target.head() for target in (servers.local, servers.tokens)]
    started = time.monotonic()
    found = case.attack(servers)
    took = time.monotonic() - started
    status, success = None, ""
    if isinstance(found, str):
        success = found
    else:
        status = found.status
        if status not in case.right:
            success = f"status {status}: {found.body[:120]!r}"
    after = [target.head() for target in (servers.local, servers.tokens)]
    if not success and not case.stores and before != after:
        success = f"events were stored: {before} → {after}"
    return {
        "group": case.group,
        "case": case.name,
        "status": status,
        "success": success,
        "seconds": round(took, 2),
    }


def cases() -> Iterator[Case]:
    yield from host_cases()
    yield from origin_cases()
    yield from token_cases()
    yield from body_cases()
    yield from path_cases()
    yield from header_cases()
    yield from markup_cases()
    yield from export_cases()
    yield from amount_cases()


LABEL = "/v1/nodes/n0/label"
RED = {"label": "red"}


def host_cases() -> Iterator[Case]:
    hosts = (
        *("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "127.0.0.1@evil"),
        *("[::1", "localhost.evil", "127.0.0.1:port", "0.0.0.0", "localhost\tevil", "127.1"),
    )
    for host in hosts:
        for path in ("/", "/healthz", "/v1/model", "/metrics"):
            yield Case("rebinding host", f"{host!r} {path}", _get(path, {"Host": host}))
    yield Case("rebinding host", "a write with an allowed Origin", _foreign_host)
    for lines in ("", "Host: 127.0.0.1\r\nHost: evil.example\r\n"):
        request = f"GET /v1/model HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode()
        yield Case("rebinding host", repr(lines), lambda s, r=request: s.local.raw(r))  # type: ignore[misc]


def _get(path: str, headers: dict[str, str]) -> Callable[[Servers], Reply]:
    return lambda servers: servers.local.send("GET", path, headers=headers)


def _foreign_host(servers: Servers) -> Reply:
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    return servers.local.send("PUT", LABEL, RED, headers)


def origin_cases() -> Iterator[Case]:
    forged: list[dict[str, str]] = [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "file://"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Referer": "http://127.0.0.1/"},
        {"Cookie": "unimp_session=guess"},
        {"X-Requested-With": "XMLHttpRequest"},
    ]
    writes = (("PUT", LABEL, RED), ("POST", "/v1/undo", {"version": 1}), ("DELETE", LABEL, None))
    for headers in forged:
        for method, path, body in writes:
            yield Case(
                "forged origin",
                f"{method} {path} {headers}",
                lambda s, m=method, p=path, b=body, h=headers: s.local.send(m, p, b, h),  # type: ignore[misc]
            )
    for suffix in (".evil.example", "@evil.example", "0"):
        yield Case(
            "forged origin",
            f"the address of the server and {suffix!r}",
            lambda s, x=suffix: s.local.send("PUT", LABEL, RED, {"Origin": s.local.origin + x}),  # type: ignore[misc]
        )
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"Origin": "http://evil.example", "Content-Type": kind}
        yield Case(
            "forged origin",
            f"a form with {kind}",
            lambda s, h=headers: s.local.send("POST", "/v1/labels", b'{"labels": []}', h),  # type: ignore[misc]
        )
    yield Case("forged origin", "reading from another page", _cross_read)
    yield Case("forged origin", "reading is not shared with other pages", _no_cors)
    yield Case("forged origin", "a session is not used by another page", _session_riding)
    for header in ("X-HTTP-Method-Override", "X-Method-Override"):
        yield Case(
            "forged origin",
            f"{header}: PUT",
            lambda s, h=header: s.local.send("GET", LABEL, headers={h: "PUT"}),  # type: ignore[misc]
        )


def _cross_read(servers: Servers) -> Reply:
    return servers.local.send("GET", "/v1/log", headers={"Sec-Fetch-Site": "cross-site"})


def _no_cors(servers: Servers) -> str:
    for method in ("GET", "OPTIONS"):
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "PUT"}
        reply = servers.local.send(method, "/v1/model", headers=headers)
        if "access-control" in reply.head.lower():
            return f"{method} is shared with other pages"
    return ""


def _session_riding(servers: Servers) -> Reply:
    reply = servers.tokens.send(
        "POST", "/v1/session", {"token": servers.people["labeler"]}, Origin=servers.tokens.origin
    )
    (line,) = [line for line in reply.head.splitlines() if line.lower().startswith("set-cookie")]
    if not all(word in line.lower() for word in ("httponly", "samesite=strict")):
        return Reply(200, line, b"the cookie can be read or is sent by other pages")
    cookie = line.partition(":")[2].partition(";")[0].strip()
    own = servers.tokens.send("GET", "/v1/me", Cookie=cookie)
    assert own.status == 200, own.head
    return servers.tokens.send(
        "PUT", LABEL, RED, {"Cookie": cookie, "Origin": "http://evil.example"}
    )


def token_cases() -> Iterator[Case]:
    def given(value: Callable[[Servers], str]) -> Callable[[Servers], Reply]:
        return lambda s: s.tokens.send("GET", "/v1/model", Authorization=value(s))

    good = lambda s: s.people["admin"]  # noqa: E731
    values: dict[str, Callable[[Servers], str]] = {
        "no value": lambda s: "",
        "an empty token": lambda s: "Bearer ",
        "a wrong token": lambda s: "Bearer " + "x" * 43,
        "most of a token": lambda s: f"Bearer {good(s)[:-1]}",
        "a token and one more character": lambda s: f"Bearer {good(s)}x",
        "a token in other letters": lambda s: f"Bearer {good(s).swapcase()}",
        "the stored hash": lambda s: f"Bearer {hashlib.sha256(good(s).encode()).hexdigest()}",
        "basic authentication": lambda s: f"Basic {good(s)}",
        "a very long token": lambda s: "Bearer " + "x" * 20_000,
        "letters outside of ASCII": lambda s: "Bearer é",
        "an expression": lambda s: "Bearer ' or 1=1 --",
    }
    for name, value in values.items():
        yield Case("wrong token", name, given(value))
    for path in ("/v1/model", "/v1/events", "/v1/export/labels.csv", "/metrics", "/openapi.json"):
        yield Case("wrong token", f"no token at all: {path}", _without_token(path))
    for query in ("token", "access_token", "api_key", "authorization"):
        yield Case(
            "token in an address",
            f"?{query}=",
            lambda s, q=query: s.tokens.send("GET", f"/v1/model?{q}={s.people['admin']}"),  # type: ignore[misc]
        )
    yield Case(
        "token in an address",
        "as the cookie of a session",
        lambda s: s.tokens.send("GET", "/v1/model", Cookie=f"unimp_session={s.people['admin']}"),
    )
    roles = {
        "reader": (("PUT", LABEL, RED), ("POST", "/v1/nodes/n0/skip", None)),
        "labeler": (
            ("POST", "/v1/nodes", {"nodes": [{"id": "x", "values": {}}]}),
            ("POST", "/v1/people", {"name": "me", "role": "admin"}),
            ("PUT", "/v1/people/labeler/role", {"role": "admin"}),
        ),
        "reviewer": (("POST", "/v1/retrain", {}), ("POST", "/v1/generations/0/activate", None)),
    }
    for role, writes in roles.items():
        for method, path, body in writes:
            yield Case(
                "more than a role allows",
                f"{role}: {method} {path}",
                lambda s, r=role, m=method, p=path, b=body: s.tokens.send(  # type: ignore[misc]
                    m, p, b, Authorization=f"Bearer {s.people[r]}"
                ),
                (403,),
            )
    yield Case("revoked token", "the token, and its session", _revoked)
    yield Case("revoked token", "the old token after a new one was made", _replaced)
    yield Case("many wrong tokens", "the 30th wrong token within a second", _brute_force, (429,))


def _without_token(path: str) -> Callable[[Servers], Reply]:
    return lambda s: s.tokens.send("GET", path)


def _revoked(servers: Servers) -> Reply | str:
    target = servers.tokens
    token = json.loads(target.write("/v1/people", {"name": "gone", "role": "labeler"}).body)[
        "token"
    ]
    reply = target.send("POST", "/v1/session", {"token": token}, Origin=target.origin)
    line = next(line for line in reply.head.splitlines() if line.lower().startswith("set-cookie"))
    cookie = line.partition(":")[2].partition(";")[0].strip()
    target.write("/v1/people/gone", None, "DELETE")
    if target.send("GET", "/v1/model", Cookie=cookie).status != 401:
        return "the session of a revoked person still works"
    return target.send("GET", "/v1/model", Authorization=f"Bearer {token}")


def _replaced(servers: Servers) -> Reply | str:
    target = servers.tokens
    old = json.loads(target.write("/v1/people", {"name": "new", "role": "labeler"}).body)["token"]
    new = json.loads(target.write("/v1/people/new/token", None).body)["token"]
    if target.send("GET", "/v1/model", Authorization=f"Bearer {new}").status != 200:
        return "the new token does not work"
    return target.send("GET", "/v1/model", Authorization=f"Bearer {old}")


def _brute_force(servers: Servers) -> Reply:
    # Headers of proxies must not let one address look like many.
    for n in range(40):
        reply = servers.tokens.send(
            "GET", "/v1/model", {}, {"X-Forwarded-For": f"10.0.0.{n}"}, Authorization=f"Bearer {n}"
        )
    if servers.tokens.send("GET", "/v1/model", headers=servers.tokens.allowed).status != 200:
        return Reply(0, "", b"somebody with a token is locked out")
    return reply


def body_cases() -> Iterator[Case]:
    deep = {
        "arrays": b"[" * 100_000,
        "closed arrays": b'{"ids": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "objects": b'{"ids":' * 50_000 + b"1" + b"}" * 50_000,
    }
    wrong = {
        "nothing": b"",
        "half": b'{"ids": [',
        "invalid UTF-8": b'{"ids": ["\xff\xfe"]}',
        "a lone surrogate": b'{"ids": ["\\ud800"]}',
        "a control character": b'{"ids": ["a\\u0000b"]}',
        "a long id": b'{"ids": ["' + b"x" * 100_000 + b'"]}',
        "a number without end": b'{"ids": [' + b"9" * 100_000 + b"]}",
        "infinity": b'{"ids": [1e999]}',
        "NaN": b'{"ids": [NaN]}',
        "many ids": json.dumps({"ids": ["n0"] * 150_000}).encode(),
        "an unknown field": b'{"ids": ["n0"], "__proto__": {}}',
        "a pickle": b"\x80\x04\x95\x00cos\nsystem\n.",
        "XML": b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    }
    for group, bodies in (("deep JSON", deep), ("invalid body", wrong)):
        for name, body in bodies.items():
            kind = {"Content-Type": "application/json"}
            yield Case(
                group,
                name,
                lambda s, b=body, k=kind: s.local.send(
                    "POST", "/v1/predict", b, s.local.allowed | k
                ),  # type: ignore[misc]
            )
    tables = {
        "CSV without columns": ("text/csv", b"a,b\n1,2\n"),
        "CSV with a NUL": ("text/csv", b"node,label\nn0,r\x00d\n"),
        "CSV with an open quote": ("text/csv", b'node,label\n"n0,red\n'),
        "a huge CSV field": ("text/csv", b"node,label\n" + b"x" * 300_000 + b",red\n"),
        "not Parquet": ("application/vnd.apache.parquet", b"PAR1 nothing PAR1"),
        "another type": ("application/x-python-pickle", b"\x80\x04."),
        "unpacked by the server": ("application/json", b"\x1f\x8b\x08\x00" + b"\x00" * 100),
    }
    for name, (kind_of, body) in tables.items():
        headers = {"Content-Type": kind_of, "Content-Encoding": "gzip"}
        if "unpacked" not in name:
            del headers["Content-Encoding"]
        yield Case(
            "invalid body",
            name,
            lambda s, b=body, h=headers: s.local.send("POST", "/v1/labels", b, s.local.allowed | h),  # type: ignore[misc]
        )
    yield Case("huge body", "announced", _announced, (413, 400))
    yield Case("huge body", "counted while it arrives", _streamed, (413,))
    yield Case("huge body", "longer than announced", _longer)
    for length in ("-1", "abc", "1e9", "0x10", "9" * 30, "1, 2"):
        yield Case("huge body", f"Content-Length: {length}", _length(length))
    smuggled = (
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 40\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
    )
    for lines in smuggled:
        yield Case("two lengths", repr(lines), _smuggle(lines))
    yield Case("slow client", "a body that never ends", _slow_body, (408,))
    yield Case("slow client", "headers that never end", _slow_headers)
    yield Case("slow client", "500 connections that send nothing", _idle)


def _announced(servers: Servers) -> Reply:
    return servers.local.send(
        "POST", "/v1/predict", b"{", servers.local.allowed, **{"Content-Length": str(10**12)}
    )


def _head(servers: Servers, lines: str, path: str = "/v1/predict") -> bytes:
    target = servers.local
    return (
        f"POST {path} HTTP/1.1\r\nHost: {target.host}\r\nOrigin: {target.origin}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\n{lines}\r\n"
    ).encode()


def _streamed(servers: Servers) -> Reply:
    piece = b"10000\r\n" + b"x" * (1 << 16) + b"\r\n"
    # Reading starts before the end, because the server stops in the middle.
    return servers.local.raw(_head(servers, "Transfer-Encoding: chunked\r\n"), *[piece] * 20)


def _longer(servers: Servers) -> str:
    body = b'{"ids": []}PUT /v1/nodes/n0/label HTTP/1.1\r\nHost: x\r\n\r\n'
    reply = servers.local.raw(_head(servers, "Content-Length: 11\r\n") + body)
    return "" if reply.body.count(b"HTTP/1.1") == 0 else "the rest was taken as a request"


def _length(text: str) -> Callable[[Servers], Reply]:
    return lambda s: s.local.raw(
        _head(s, f"Content-Length: {text}\r\n") + b'{"ids": []}', timeout=5
    )


def _smuggle(lines: str) -> Callable[[Servers], Reply | str]:
    def attack(servers: Servers) -> Reply | str:
        inner = f"PUT {LABEL} HTTP/1.1\r\nHost: {servers.local.host}\r\nOrigin: "
        inner += f"{servers.local.origin}\r\nContent-Length: 16\r\n\r\n" + json.dumps(RED)
        body = f"0\r\n\r\n{inner}".encode()
        reply = servers.local.raw(_head(servers, lines) + body, timeout=5)
        # A front that reads one length and a server that reads the other would disagree.
        return reply if reply.status in (*REFUSED, 0) else f"status {reply.status}"

    return attack


def _slow_body(servers: Servers) -> Reply:
    return servers.local.raw(_head(servers, "Content-Length: 100\r\n"), *[b"{"] * 40, wait=1.0)


def _slow_headers(servers: Servers) -> str:
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", servers.local.port), timeout=1.0) as link:
        link.sendall(f"GET / HTTP/1.1\r\nHost: {servers.local.host}\r\n".encode())
        while time.monotonic() - start < 60:
            try:
                link.sendall(b"X-More: 1\r\n")
                if not link.recv(1000):
                    return ""
            except TimeoutError:
                continue
            except OSError:
                return ""
            else:
                return ""  # the server answered
    return "the connection stays open for more than a minute"


def _idle(servers: Servers) -> str:
    """Connections that send nothing must not keep others out for long."""
    with ExitStack() as stack:
        for _ in range(510):
            with suppress(OSError):
                link = socket.create_connection(("127.0.0.1", servers.local.port), timeout=5)
                stack.enter_context(link)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with suppress(OSError):
                if servers.local.raw(_ping(servers), timeout=5).status == 200:
                    return ""
            time.sleep(0.5)
    return "nobody else was answered for 30 seconds"


def _ping(servers: Servers) -> bytes:
    host = servers.local.host
    return f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def path_cases() -> Iterator[Case]:
    paths = (
        *("/labels.db", "/run/labels.db", "/.labels.lock", "/page/", "/page", "/v1", "/v1/"),
        *("/page/../labels.db", "/page/../../labels.db", "/page/%2e%2e/labels.db"),
        *("/page/..%2f..%2flabels.db", "/page/..%5c..%5clabels.db", "/page/%252e%252e/labels.db"),
        *("/page/%c0%ae%c0%ae/labels.db", "/page//etc/passwd", "//etc/passwd", "/etc/passwd"),
        *("/page/vendor/../../front/access.py", "/page/app.js%00.css", "/page/__init__.py"),
        *("/api/../access.py", "/docs/../app.py", "/v1/export/labels.db", "/v1/export/%2e%2e.csv"),
        *("/v1/export/labels.csv/../../labels.db", "/v1/nodes/..%2f..%2flabels.db"),
        *("/v1/nodes/%00", "/v1/nodes/%ff%fe", "/v1/nodes/" + "x" * 7_000, "/v1/jobs/..%2f1"),
        *("/v1/generations/../activate", "/v1/people/..%2f..", "/" + "a" * 20_000, "/%"),
        *("/v1/nodes/n0/label/../../../labels.db", "/v2/models/..%2fx/infer", "/;/v1/model"),
    )
    for path in paths:
        yield Case("path", path[:80], _get(path, {}))
    for query in (
        *("min_version=-1", "min_version=99999999999999999999", "min_version=x", "limit=-1"),
        *("limit=1e9", "offset=-5", "sort=drop", "q=" + "x" * 5_000, "reached=1&reached=2"),
    ):
        path = f"/v1/nodes?{query}"
        yield Case("path", path[:60], _get(path, {}), (*REFUSED, 200, 503))


def header_cases() -> Iterator[Case]:
    def given(headers: dict[str, str]) -> Callable[[Servers], Reply]:
        return lambda s: s.local.send("PUT", LABEL, RED, s.local.allowed | headers)

    for name, headers in {
        "a key with a space": {"Idempotency-Key": "a b"},
        "a key of 300 letters": {"Idempotency-Key": "k" * 300},
        "a key outside of ASCII": {"Idempotency-Key": "é"},
        "If-Match that is no version": {"If-Match": "abc"},
        "If-Match below 0": {"If-Match": '"-1"'},
        "If-Match beyond all versions": {"If-Match": '"' + "9" * 30 + '"'},
        "40 kB of headers": {"X-More": "x" * 40_000},
        "a line end in a header": {"X-More": "a\r\n b\x00c"},
    }.items():
        yield Case("header", name, given(headers), (*REFUSED, 412))
    yield Case(
        "header",
        "2,000 headers",
        lambda s: s.local.send(
            "GET", "/v1/model", headers={f"X-{n}": "x" * 20 for n in range(2_000)}
        ),
    )
    for method in ("TRACE", "CONNECT", "PATCH", "FOO", "GET\t"):
        yield Case(
            "header",
            f"method {method!r}",
            lambda s, m=method: s.local.send(m, "/v1/nodes/n0", headers=s.local.allowed),  # type: ignore[misc]
        )
    yield Case("header", "a web socket", _websocket)
    yield Case("header", "another address in the request line", _absolute)
    yield Case("header", "the real address hidden by X-Original-URL", _rewritten)
    for request in (
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"SSH-2.0-x\r\n",
    ):
        yield Case(
            "header",
            f"not HTTP: {request[:10]!r}",
            lambda s, r=request: ""
            if s.local.raw(r, timeout=3).status in (*REFUSED, 0)
            else "answered",  # type: ignore[misc]
        )


def _websocket(servers: Servers) -> Reply | str:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    request = "GET /v1/events HTTP/1.1\r\nHost: evil.example\r\n"
    request += "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
    reply = servers.local.raw(request.encode(), timeout=5)
    return "the connection was upgraded" if reply.status == 101 else ""


def _absolute(servers: Servers) -> Reply | str:
    line = "GET http://evil.example/v1/model HTTP/1.1\r\nHost: evil.example\r\n"
    return servers.local.raw(f"{line}Connection: close\r\n\r\n".encode())


def _rewritten(servers: Servers) -> Reply:
    headers = {"X-Original-URL": "/healthz", "X-Rewrite-URL": "/healthz", "X-Forwarded-Host": "x"}
    return servers.tokens.send("GET", "/v1/model", headers=headers)


def markup_cases() -> Iterator[Case]:
    for n, markup in enumerate((*MARKUP, "</title><svg onload=alert(1)>", "${7*7}{{7*7}}")):
        yield Case("markup", f"an id {markup!r}", _marked(markup, n), stores=True)
    for bad in ("a\u202eb", "a\nb", "a\tb", "\x1b[2J", "\x00", "", " " * 0, "x" * 513):
        body = {"nodes": [{"id": bad, "values": {"size": 1.0, "kind": "a"}}]}
        yield Case("markup", f"an id {bad[:20]!r}", lambda s, b=body: s.local.write("/v1/nodes", b))  # type: ignore[misc]
    for note in ("\x1b[31mred", "a\x00b", "x" * 5_000, ""):
        yield Case(
            "markup",
            f"a note {note[:20]!r}",
            lambda s, t=note: s.local.write("/v1/nodes/n0/notes", {"text": t}),  # type: ignore[misc]
        )


def _marked(markup: str, number: int) -> Callable[[Servers], str]:
    """A node whose id is markup is shown as text wherever it is sent."""

    def attack(servers: Servers) -> str:
        target, name = servers.local, f"{markup} {number}"
        body = {"nodes": [{"id": name, "values": {"size": 1.0, "kind": "a"}}]}
        edge = {"source": name, "target": "n0", "values": {"weight": 1}}
        written = target.write("/v1/nodes", body | {"edges": [edge]})
        if written.status != 200:
            return f"a legal id was refused: {written.body[:100]!r}"
        version = json.loads(written.body)["version"]
        at = f"/v1/nodes/{quote(name, safe='')}"
        target.write(f"{at}/notes", {"text": markup})
        for path in (
            at,
            f"{at}/details",
            f"{at}/explanation.json",
            "/v1/log",
            f"/v1/nodes?q={quote(markup)}",
        ):
            join = "&" if "?" in path else "?"
            reply = target.send("GET", f"{path}{join}min_version={version}")
            head = reply.head.lower()
            if reply.status != 200 or "application/json" not in head or "nosniff" not in head:
                return f"{path}: {reply.status} {reply.body[:80]!r}"
        for path in (f"{at}/explanation.svg", "/v1/nodes/n0/explanation.svg"):
            reply = target.send("GET", path)
            if (
                b"<script" in reply.body
                or b"<img" in reply.body
                or b"onload=" in reply.body.replace(b"&lt;svg onload=", b"")
            ):
                return f"{path} contains markup of an id"
        missing = target.send("GET", f"/v1/nodes/{quote(name + 'x', safe='')}")
        if "text/html" in missing.head.lower():
            return "an error is HTML"
        return ""

    return attack


def export_cases() -> Iterator[Case]:
    for number, formula in enumerate(FORMULAS):
        if "\t" not in formula:
            yield Case(
                "formula in an export", repr(formula), _formula(formula, number), stores=True
            )
    yield Case("formula in an export", "the name of a person", _formula_name, stores=True)


def dangerous(cell: str) -> bool:
    """Whether a spreadsheet would compute a cell."""
    if not cell or cell[0] not in "=+-@\t\r":
        return False
    try:
        float(cell)
    except ValueError:
        return True
    return False


def _cells(target: Target, name: str) -> list[list[str]]:
    body = target.send("GET", f"/v1/export/{name}.csv", headers=target.allowed).body.decode()
    if body.startswith(tuple("0123456789abcdef")) and "\r\n" in body[:10]:  # chunked
        body = body.split("\r\n", 1)[1].rsplit("\r\n0\r\n", 1)[0]
    return list(csv.reader(io.StringIO(body)))


def _formula(formula: str, number: int) -> Callable[[Servers], str]:
    def attack(servers: Servers) -> str:
        target, name = servers.local, f"{formula} {number}"
        body = {"nodes": [{"id": name, "values": {"size": 1.0, "kind": "a"}}]}
        version = json.loads(target.write("/v1/nodes", body).body)["version"]
        at = f"/v1/nodes/{quote(name, safe='')}"
        target.send("GET", f"{at}?min_version={version}")
        written = target.write(f"{at}/label", RED | {"source": formula}, "PUT")
        version = json.loads(written.body)["version"]
        target.send("GET", f"{at}?min_version={version}")
        for table in ("labels", "log", "predictions"):
            rows = _cells(target, table)
            if bad := [cell for row in rows for cell in row if dangerous(cell)]:
                return f"{table}.csv contains the cell {bad[0]!r}"
        # What was written can be read again: the id is the same afterwards.
        cells = next(row for row in _cells(target, "labels") if name in row[0])
        again = f'node,label\n"{cells[0]}",green\n'.encode()
        headers = target.allowed | {"Content-Type": "text/csv"}
        if target.send("POST", "/v1/labels", again, headers).status != 200:
            return "an exported id cannot be imported again"
        return ""

    return attack


def _formula_name(servers: Servers) -> str:
    target = servers.tokens
    answer = target.write("/v1/people", {"name": "=1+1", "role": "labeler"})
    if answer.status == 200 or answer.status == 201:
        token = json.loads(answer.body)["token"]
        target.send("PUT", LABEL, RED, Authorization=f"Bearer {token}")
    rows = [cell for table in ("labels", "log") for row in _cells(target, table) for cell in row]
    return next((f"the cell {cell!r}" for cell in rows if dangerous(cell)), "")


def amount_cases() -> Iterator[Case]:
    yield Case("rate limit", "thousands of writes within a second", _flood, stores=False)
    yield Case("queue bound", "400 requests at once", _crowd, stores=True)
    yield Case("queue bound", "listeners that do not read", _listeners, stores=True)


def _flood(servers: Servers) -> str:
    """Writes that are refused at once, so that only their number counts."""
    headers = {"Authorization": f"Bearer {servers.people['labeler']}", "Content-Length": "0"}
    found: list[str | None] = []

    def send() -> None:
        link = http.client.HTTPConnection("127.0.0.1", servers.tokens.port, timeout=30)
        while len(found) < 6_000:
            link.request("POST", "/v1/predict", headers=headers)
            reply = link.getresponse()
            reply.read()
            found.append(reply.headers["Retry-After"] if reply.status == 429 else "")
            if reply.status == 429:
                return

    started = time.monotonic()
    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limited = [wait for wait in found if wait != ""]
    if not limited:
        return f"{len(found):,} writes in {time.monotonic() - started:.1f} s without 429"
    return "" if all(limited) else "429 without Retry-After"


def _crowd(servers: Servers) -> str:
    found: list[int] = []

    def one(n: int) -> None:
        with suppress(OSError):
            body = {"labels": {f"n{n % 60}": "red"}}
            found.append(servers.local.write("/v1/what-if", body).status)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(400)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong := sorted({status for status in found if status not in (200, 503)}):
        return f"statuses {wrong}"
    return "" if 200 in found else "nobody was answered"


def _listeners(servers: Servers) -> str:
    """Connections that ask for events and never read them."""
    with ExitStack() as stack:
        for _ in range(50):
            link = socket.create_connection(("127.0.0.1", servers.local.port), timeout=30)
            stack.enter_context(link)
            link.sendall(f"GET /v1/events HTTP/1.1\r\nHost: {servers.local.host}\r\n\r\n".encode())
        for n in range(30):
            status = servers.local.write(LABEL, {"label": ("red", "green")[n % 2]}, "PUT").status
            if status != 200:
                return f"a write beside them was answered with {status}"
    return ""


@contextmanager
def serving(run: Path, *, token_file: Path | None = None) -> Iterator[Target]:
    """`unimp serve` in another process, with its output in a file beside the run."""
    output = run.parent / f"output-{run.name}.txt"
    target = Target(free_port(), output)
    command = [sys.executable, "-m", "unimp", "serve", str(run), "--port", str(target.port)]
    if token_file is not None:
        command += ["--token-file", str(token_file)]
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + 90
            while True:
                with suppress(OSError):
                    if target.send("GET", "/readyz").status == 200:
                        break
                if time.monotonic() > end or process.poll() is not None:
                    raise RuntimeError(f"the server is not ready: {output.read_text()}")
                time.sleep(0.2)
            if token_file is not None:
                target.token = token_file.read_text().strip()
            yield target
        finally:
            process.terminate()
            process.wait(30)


def train(folder: Path) -> Path:
    """A small run on two tables."""
    rows = [f"n{n},{n % 7},{'ab'[n % 2]},{COLORS[n % 3] if n % 2 else ''}" for n in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["id,size,kind,label", *rows]) + "\n")
    pairs = [f"n{n},n{(n * k + k) % 60},{n % 5}" for n in range(60) for k in (7, 11)]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *pairs]) + "\n")
    task = unimp.task_from_tables(
        folder / "nodes.csv",
        folder / "edges.csv",
        label="label",
        features={"size": "numeric", "kind": "categorical"},
        edge_features={"weight": "numeric"},
    )
    unimp.run(task, settings=SETTINGS, out=folder / "run", progress=False)
    return folder / "run"


def attack(folder: Path, run: Path, chosen: Callable[[Case], bool]) -> dict[str, Any]:
    """Run the chosen cases against two servers of copies of a run."""
    copies = [folder / "local", folder / "tokens"]
    for copy in copies:
        shutil.copytree(run, copy)
    with (
        serving(copies[0]) as local,
        serving(copies[1], token_file=folder / "token") as tokens,
    ):
        servers = Servers(local, tokens, {"admin": tokens.token})
        for role in ("reader", "labeler", "reviewer"):
            made = tokens.write("/v1/people", {"name": role, "role": role})
            servers.people[role] = json.loads(made.body)["token"]
        results = []
        for case in cases():
            if chosen(case):
                results.append(run_case(case, servers))
                if results[-1]["success"]:
                    print(
                        f"SUCCESS  {case.group}: {case.name}: {results[-1]['success']}", flush=True
                    )
        alive = all(t.send("GET", "/readyz").status == 200 for t in (local, tokens))
    output = "".join(t.output.read_text(errors="replace") for t in (local, tokens))
    ends = {
        "both servers still answer": alive,
        "no token in their output": not [t for t in servers.people.values() if t in output],
        "no traceback in their output": "Traceback" not in output,
        "the labels can only be read by their owner": all(
            (copy / "labels.db").stat().st_mode & 0o077 == 0 for copy in copies
        ),
    }
    return {"cases": results, "afterwards": ends, "output": output}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--group", default="", help="run cases of one group, and store nothing")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = attack(folder, train(folder), lambda case: given.group in case.group)
    output = found.pop("output")
    groups: dict[str, dict[str, int]] = {}
    for result in found["cases"]:
        group = groups.setdefault(result["group"], {"cases": 0, "successes": 0})
        group["cases"] += 1
        group["successes"] += bool(result["success"])
    failed = [name for name, right in found["afterwards"].items() if not right]
    successes = sum(group["successes"] for group in groups.values()) + len(failed)
    for name in failed:
        print(f"SUCCESS  {name}: no")
    if "Traceback" in output:
        print(output[-3000:])
    print(f"{len(found['cases'])} cases, {successes} successes")
    stored = {
        "cases": len(found["cases"]),
        "successes": successes,
        "groups": groups,
        "afterwards": found["afterwards"],
        "each": found["cases"],
        "unimp": unimp.__version__,
        "code": code_origin(),
        "command": "python proofs/serve_hostile.py",
    }
    if not given.group:
        write_atomically(given.out, (json.dumps(stored, indent=1) + "\n").encode())
    sys.exit(1 if successes else 0)


if __name__ == "__main__":
    main()
