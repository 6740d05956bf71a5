"""Actors: people and programs that use the service, their roles, and their tokens.

A token has 256 random bits. Only its SHA-256 is stored: the token cannot be guessed, so a slow hash
would add nothing. An actor is never deleted, because events name it; it can be revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import TypeAdapter, ValidationError

from unimp.errors import ForbiddenError, ServiceError, nearest_names
from unimp.serving.events import Name, Write
from unimp.serving.reader import Reader
from unimp.serving.writer import Writer

Role = Literal["reader", "labeler", "reviewer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each role may do everything that the roles before it may do."""

NEEDS: dict[str, Role] = {
    "read": "reader",
    "label": "labeler",
    "retract": "labeler",
    "skip": "labeler",
    "note": "labeler",
    "claim": "labeler",
    "undo": "labeler",  # of one's own events
    "undo-others": "reviewer",
    "many": "reviewer",  # more than FEW writes in a request
    "withdraw": "reviewer",
    "node": "reviewer",
    "edge": "reviewer",
    "edge-removed": "reviewer",
    "model": "admin",
    "people": "admin",
    "backup": "admin",
}
"""The role that an action needs. The kinds of events are actions."""

FEW = 20
TOKEN_BYTES = 32
SHORTEST_TOKEN = 43
"""Characters of 256 bits in base 64."""
_NAME: TypeAdapter[str] = TypeAdapter(Name)


@dataclass(frozen=True)
class Actor:
    """A person or a program."""

    name: str
    role: Role
    revoked: bool = False

    def may(self, action: str) -> bool:
        """Return whether the role allows an action (a key of NEEDS)."""
        return not self.revoked and ROLES.index(self.role) >= ROLES.index(NEEDS[action])

    def check(self, action: str) -> None:
        """Refuse an action that the role does not allow."""
        if self.revoked:
            raise ForbiddenError(f"the access of {self.name!r} was revoked. Ask an admin.")
        if not self.may(action):
            raise ForbiddenError(
                f"{self.name!r} is a {self.role}, but {action!r} needs the role {NEEDS[action]}. "
                "Ask an admin for this role."
            )

    def check_writes(self, writes: tuple[Write, ...], others: bool) -> None:
        """Refuse writes that the role does not allow; others: some undo events of others."""
        for kind in dict.fromkeys(write.kind for write in writes):
            self.check(kind)
        if len(writes) > FEW:
            self.check("many")
        if others:
            self.check("undo-others")


def find_actor(db: sqlite3.Connection, name: str) -> Actor:
    """The actor with this name; raise ForbiddenError if there is none."""
    row = db.execute("select role, revoked from actor where name = ?", (name,)).fetchone()
    if row is None:
        raise ForbiddenError(f"there is no actor {name!r}. Ask an admin to add it.")
    return Actor(name, row[0], bool(row[1]))


def hash_of(token: str) -> bytes:
    """The hash of a token, which is what the database stores."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class People:
    """The actors in a database."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer, self._reader = writer, reader

    def add(self, name: str, role: Role, *, token: bool = True) -> str:
        """Add an actor and return its token, which cannot be shown again.

        token: without one the result is empty, and only the service itself can act as this actor.
        """
        _check_role(role)
        try:
            _NAME.validate_python(name, strict=True)
        except ValidationError as error:
            raise ServiceError(f"{name!r} is not a name: {error.errors()[0]['msg']}.") from None
        made = secrets.token_urlsafe(TOKEN_BYTES) if token else ""

        def job(db: sqlite3.Connection) -> None:
            if db.execute("select 1 from actor where name = ?", (name,)).fetchone():
                raise ServiceError(f"there is an actor {name!r} already. Choose another name.")
            values = (name, role, hash_of(made) if token else None)
            db.execute("insert into actor (name, role, token_hash) values (?, ?, ?)", values)

        self._writer.submit(job).result()
        return made

    def install(self, name: str, role: Role, token: str) -> None:
        """Give an actor, who is added if necessary, a token that was made earlier."""
        if len(token) < SHORTEST_TOKEN:
            raise ServiceError(
                f"the token of {name!r} has {len(token)} characters; it needs {SHORTEST_TOKEN}. "
                "Remove the file, so that a new token is made."
            )
        if name not in {actor.name for actor in self.all()}:
            self.add(name, role, token=False)
        self._change(name, "token_hash = ?, revoked = 0", hash_of(token))
        self.set_role(name, role)

    def renew(self, name: str) -> str:
        """Give an actor a new token; the old one is not valid anymore. Also ends a revocation."""
        made = secrets.token_urlsafe(TOKEN_BYTES)
        self._change(name, "token_hash = ?, revoked = 0", hash_of(made))
        return made

    def revoke(self, name: str) -> None:
        """Take the access of an actor away, also for requests that are waiting."""
        self._change(name, "token_hash = ?, revoked = 1", None)

    def set_role(self, name: str, role: Role) -> None:
        """Give an actor another role."""
        _check_role(role)
        self._change(name, "role = ?", role)

    def _change(self, name: str, assignment: str, value: bytes | str | None) -> None:
        def job(db: sqlite3.Connection) -> None:
            found = db.execute(f"update actor set {assignment} where name = ?", (value, name))
            if not found.rowcount:
                known = (row[0] for row in db.execute("select name from actor"))
                raise ServiceError(f"there is no actor {name!r}; {nearest_names(name, known)}")

        self._writer.submit(job).result()

    def of_token(self, token: str) -> Actor | None:
        """The actor with this token; None if no actor has it.

        All hashes are compared, each in constant time, so the duration tells nothing about them.
        """
        given, found = hash_of(token), None
        rows = self._reader.rows(
            "select name, role, token_hash from actor where token_hash is not null"
        )
        for name, role, stored in rows:
            if hmac.compare_digest(given, stored):
                found = Actor(name, role)
        return found

    def all(self) -> list[Actor]:
        """All actors by name, also those that were revoked."""
        rows = self._reader.rows("select name, role, revoked from actor order by name")
        return [Actor(name, role, bool(revoked)) for name, role, revoked in rows]


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ServiceError(f"there is no role {role!r}; {nearest_names(role, ROLES)}")
