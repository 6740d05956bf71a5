"""Actors, roles and tokens."""

import base64
from pathlib import Path

import pytest

from unimp.errors import ForbiddenError, ServiceError
from unimp.serving import people
from unimp.serving.events import KINDS, Label
from unimp.serving.people import NEEDS, ROLES, Actor
from unimp.serving.store import Request, Store


def test_a_token_names_its_actor_and_is_not_stored(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        tokens = {name: store.people.add(name, "labeler") for name in ("anna", "ben")}
        assert store.people.add("local", "admin", token=False) == ""
        for name, token in tokens.items():
            assert store.people.of_token(token) == Actor(name, "labeler")
            assert len(base64.urlsafe_b64decode(token + "=")) * 8 == 256
        for wrong in ("", "anna", tokens["anna"][:-1], tokens["anna"] + "A", "\ud800", "ä" * 9999):
            assert store.people.of_token(wrong) is None
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for token in tokens.values():
        assert token.encode() not in stored
        assert base64.urlsafe_b64decode(token + "=") not in stored


def test_all_tokens_are_compared_in_constant_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = people.hmac.compare_digest
    monkeypatch.setattr(
        people.hmac, "compare_digest", lambda a, b: (compared.append(b), real(a, b))[1]
    )
    store.people.of_token("wrong")
    assert len(compared) == len(ROLES)
    store.people.of_token(store.people.renew("admin"))
    assert len(compared) == 2 * len(ROLES)


def test_a_revoked_actor_can_neither_log_in_nor_write(store: Store) -> None:
    token = store.people.renew("labeler")
    label = Label(node="a", label="x")
    store.write("labeler", label)
    store.people.revoke("labeler")
    assert store.people.of_token(token) is None
    with pytest.raises(ForbiddenError, match="revoked"):
        store.submit(Request("labeler", (label,))).result()
    assert Actor("labeler", "labeler", revoked=True) in store.people.all()
    assert store.reader.events()[0].actor == "labeler"  # the history keeps its name
    again = store.people.renew("labeler")
    assert store.people.of_token(token) is None
    assert store.people.of_token(again) == Actor("labeler", "labeler")


def test_roles_can_be_changed_and_names_are_checked(store: Store) -> None:
    store.people.set_role("reader", "labeler")
    store.write("reader", Label(node="a", label="x"))
    with pytest.raises(ServiceError, match="already"):
        store.people.add("reader", "reader")
    for name in ("", "a\nb", "x" * 101):
        with pytest.raises(ServiceError, match="not a name"):
            store.people.add(name, "reader")
    with pytest.raises(ServiceError, match="'labeler'"):
        store.people.set_role("reader", "labeller")  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match="'reviewer'"):
        store.people.revoke("revewer")


def test_the_table_of_roles_covers_every_kind_of_event() -> None:
    assert set(KINDS) <= set(NEEDS)
    for action in NEEDS:
        allowed = [Actor("x", role).may(action) for role in ROLES]
        assert allowed == sorted(allowed)  # a higher role may do everything that a lower one may
        assert allowed[-1]
        assert not Actor("x", "admin", revoked=True).may(action)
