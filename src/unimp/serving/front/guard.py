"""Checks that every request must pass before it reaches a route.

The host must be allowed, which stops DNS rebinding. A method that changes something needs a header
that no other web page can send. Bodies are read here, with a limit on their size and time. Node ids
may contain any character, so routes receive undecoded paths and decode ids themselves.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response

from unimp.serving.front.access import COOKIE, Access
from unimp.serving.front.problems import ProblemError, of_error, problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG = logging.getLogger("unimp.serving")
SAFE = ("GET", "HEAD", "OPTIONS")
LONGEST_PATH = 8_192
MOST_HEADERS = 100
LONGEST_HEADERS = 32 << 10
"""Bytes of all headers together."""
BODY = 1 << 20
"""Bytes of the body of most requests."""
LARGE_BODY = 64 << 20
LARGE = ("/v1/labels", "/v1/nodes", "/v1/edges")
"""Paths of requests with many labels, nodes or edges."""
BODY_TIME = 30.0
"""Seconds in which the body of a request must arrive."""
REQUEST_TIME = 120.0
"""Seconds after which most requests are ended."""
UNLIMITED = ("/v1/events", "/v1/audit", "/v1/export", "/v1/generations")
"""Paths of requests that may take longer; loading a model has its own limit."""
OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v1/session")
"""Paths that need no token; the files of the page do not need one either."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_RAW = [(name.encode(), value.encode()) for name, value in HEADERS.items()]


@dataclass(frozen=True)
class Allowed:
    """The names under which the server may be addressed."""

    hosts: frozenset[str]

    @classmethod
    def of(cls, more: Iterable[str] = ()) -> Allowed:
        return cls(frozenset(h.lower().strip("[]") for h in (*LOOPBACK, *more)))

    def host(self, given: str) -> bool:
        found = _HOST.fullmatch(given)
        return found is not None and found[1].strip("[]").lower() in self.hosts


class Guard:
    """Checks requests, and adds the headers that every response has."""

    def __init__(
        self,
        app: App,
        *,
        access: Access,
        allowed: Allowed,
        count: Callable[[str, int, float], None] = lambda route, status, seconds: None,
        ready: Callable[[Scope], Response | None] = lambda scope: None,
        body_time: float = BODY_TIME,
    ) -> None:
        """ready: the response to a checked request, if it needs neither a route nor waiting."""
        self._ready = ready
        self._app, self._access, self._allowed = app, access, allowed
        self._count, self._body_time = count, body_time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                there = {name.lower() for name, _ in headers}
                headers.extend(pair for pair in _RAW if pair[0] not in there)
                if b"cache-control" not in there:
                    headers.append((b"cache-control", b"no-store"))
            await send(message)

        try:
            receive = await self._checked(scope, receive)
            if (response := self._ready(scope)) is not None:
                await response(scope, receive, answer)
                return
            limit = None if scope["path"].startswith(UNLIMITED) else REQUEST_TIME
            async with asyncio.timeout(limit):
                await self._app(scope, receive, answer)
        except ProblemError as error:
            await error.response()(scope, receive, answer)
        except TimeoutError:
            late = problem(503, "busy", "the request took too long.", retry_after=1)
            with suppress(RuntimeError):  # the response has started
                await late(scope, receive, answer)
        except Exception as error:
            LOG.error("A request failed.", exc_info=error)
            with suppress(RuntimeError):
                await of_error(error)(scope, receive, answer)
        finally:
            route = scope.get("route")
            name = getattr(route, "path", "other")
            self._count(name, status, time.perf_counter() - started)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse requests that no route may receive; return a receiver of the complete body."""
        given = scope["headers"]
        if len(given) > MOST_HEADERS or sum(len(k) + len(v) for k, v in given) > LONGEST_HEADERS:
            raise ProblemError(431, "too-large", "the headers are too large. Send fewer headers.")
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._allowed.host(hosts[0]):
            raise ProblemError(
                421,
                "forbidden",
                "this host name is not allowed. Use the address that the service printed, or start "
                "it with --allowed-host.",
            )
        raw = scope.get("raw_path") or scope["path"].encode()
        path = raw.decode("ascii", "replace")
        if len(path) > LONGEST_PATH:
            raise ProblemError(414, "too-large", "the path is too long.")
        # Routes match what is checked here: an encoded path must not reach a route unchecked.
        scope["path"] = path
        is_api = path == "/v2" or path.startswith(("/v1/", "/v2/"))
        self._check_origin(scope["method"], headers, hosts[0], is_api=is_api)
        if is_api or path in ("/metrics", "/openapi.json"):
            self._identify(scope, headers, path)
        if scope["method"] in SAFE:
            return receive
        return await self._body(receive, headers, path)

    def _check_origin(self, method: str, headers: Headers, host: str, *, is_api: bool) -> None:
        """Refuse a request that another web page may have caused."""
        if self._access.bearer(headers) is not None:
            return
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if is_api and site in ("cross-site", "same-site"):
            raise _foreign("another web page sent this request.")
        if method in SAFE:
            return
        if origin is not None:
            if origin.lower().partition("://")[2] != host.lower():
                raise _foreign("the header Origin names another server.")
        elif site != "same-origin":
            raise _foreign(
                "a request that changes something needs a token (Authorization: Bearer …), or the "
                "header Origin with the address of this server."
            )

    def _identify(self, scope: Scope, headers: Headers, path: str) -> None:
        address = scope["client"][0] if scope.get("client") else ""
        cookie = _cookie(headers.get("cookie", ""))
        scope["state"] = {**scope.get("state", {}), "address": address, "cookie": cookie}
        if path in OPEN:
            return
        actor = self._access.actor(headers, cookie, address)
        self._access.limit(actor, writes=scope["method"] not in SAFE)
        scope["state"]["actor"] = actor

    async def _body(self, receive: Receive, headers: Headers, path: str) -> Receive:
        """Read the body, at most as long as allowed, and within some time."""
        most = LARGE_BODY if path in LARGE else BODY
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        deadline = time.monotonic() + self._body_time
        while True:
            left = deadline - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, left))
            except TimeoutError:
                raise ProblemError(408, "busy", "the body did not arrive in time.") from None
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            if not message.get("more_body"):
                break
        body = b"".join(parts)
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> MutableMapping[str, Any]:
            return next(given, None) or await receive()

        return again


def _cookie(text: str) -> str | None:
    for part in text.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value[:200]
    return None


def _foreign(detail: str) -> ProblemError:
    return ProblemError(403, "forbidden", detail)


def _too_large(most: int) -> ProblemError:
    return ProblemError(413, "too-large", f"the body has more than {most:,} bytes. Send less.")
