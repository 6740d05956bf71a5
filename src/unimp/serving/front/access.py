"""Who sends a request: tokens, sessions, and limits on how many requests they may send."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers

from unimp.serving.front.problems import ProblemError
from unimp.serving.people import TOKEN_BYTES, Actor, People, hash_of

COOKIE = "unimp_session"
LOCAL = "local"
"""The actor of requests from this computer, if no tokens are used."""
SESSION = 12 * 3600.0
"""Seconds until a session ends."""
MOST_SESSIONS = 10_000
MOST_ADDRESSES = 10_000


@dataclass
class Bucket:
    """A limit of `rate` requests per second, of which `burst` may come at once."""

    rate: float
    burst: float
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float) -> bool:
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


@dataclass(frozen=True)
class Limits:
    """Requests per second of one actor, and wrong tokens per second from one address."""

    reads: float = 2_000.0
    writes: float = 200.0
    failures: float = 0.2
    burst: float = 5.0  # seconds of requests that may come at once


class Access:
    """The actors of requests.

    local: requests without a token come from the actor `local`, who is an admin; only for a server
    that other computers cannot reach.
    """

    def __init__(
        self,
        people: People,
        *,
        local: bool,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.people, self.local, self._clock = people, local, clock
        self._limits = limits or Limits()
        self._known: dict[bytes, Actor] = {}
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._failures: OrderedDict[str, Bucket] = OrderedDict()
        self._by_name: dict[str, Actor] = {}
        if local and LOCAL not in {actor.name for actor in people.all()}:
            people.add(LOCAL, "admin", token=False)
        self.reload()

    def reload(self) -> None:
        """Read all actors again, after one of them was changed."""
        self._known.clear()
        self._by_name = {actor.name: actor for actor in self.people.all()}

    def end_sessions(self, name: str) -> None:
        for key in [key for key, (actor, _) in self._sessions.items() if actor == name]:
            del self._sessions[key]

    def bearer(self, headers: Headers) -> str | None:
        """The token in the header Authorization."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() if kind.lower() == "bearer" else None

    def actor(self, headers: Headers, cookie: str | None, address: str) -> Actor:
        """Who sends a request; raises 401 if nobody is known."""
        if (token := self.bearer(headers)) is not None:
            return self._of_token(token, address)
        if cookie:
            found = self._sessions.get(hash_of(cookie))
            if found is not None and found[1] > self._clock():
                actor = self._by_name.get(found[0])
                if actor is not None and not actor.revoked:
                    return actor
        if self.local:
            return self._by_name[LOCAL]
        raise ProblemError(
            401,
            "unauthorized",
            "send a token in the header `Authorization: Bearer …`, or open the page and sign in.",
        )

    def _of_token(self, token: str, address: str) -> Actor:
        key = hash_of(token[:1000])
        actor = self._known.get(key)
        if actor is None:
            bucket = self._failures.get(address)
            if bucket is not None and bucket.left + self._gain(bucket) < 1:
                raise _too_many("wrong tokens")
            actor = self.people.of_token(token)
            if actor is None:
                self._count_failure(address)
                raise ProblemError(401, "unauthorized", "the token is not valid, or was revoked.")
            self._known[key] = actor
        return actor

    def _gain(self, bucket: Bucket) -> float:
        return (self._clock() - bucket.at) * bucket.rate

    def _count_failure(self, address: str) -> None:
        rate = self._limits.failures
        bucket = self._failures.setdefault(address, Bucket(rate, 20.0))
        bucket.take(self._clock())
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def start_session(self, token: str, address: str) -> tuple[Actor, str]:
        """Exchange a token for the secret of a cookie."""
        actor = self._of_token(token, address)
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        self._sessions[hash_of(secret)] = (actor.name, self._clock() + SESSION)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return actor, secret

    def end_session(self, cookie: str | None) -> None:
        if cookie:
            self._sessions.pop(hash_of(cookie), None)

    def limit(self, actor: Actor, *, writes: bool) -> None:
        """Refuse a request of an actor who sends too many."""
        if actor.name == LOCAL and self.local:
            return
        rate = self._limits.writes if writes else self._limits.reads
        key = (actor.name, "writes" if writes else "reads")
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(rate, max(1.0, rate * self._limits.burst))
        if not bucket.take(self._clock()):
            raise _too_many("requests")


def _too_many(what: str) -> ProblemError:
    return ProblemError(429, "rate", f"too many {what}. Wait a second.", retry_after=1)
