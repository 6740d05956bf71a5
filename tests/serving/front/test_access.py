"""Tokens, sessions, roles and limits."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from live_server import Server, serving
from starlette.datastructures import Headers

from unimp.serving.front import listeners, listening
from unimp.serving.front.access import Access, Limits
from unimp.serving.front.problems import ProblemError
from unimp.serving.people import ROLES
from unimp.serving.store import Store


@pytest.fixture(scope="module")
def server(copied: Callable[[], Path]) -> Iterator[Server]:
    with serving(copied(), local=False) as made:
        yield made


@pytest.fixture(scope="module")
def tokens(server: Server) -> dict[str, str]:
    """A token of each role; the admin adds the others through the API."""
    found = {"admin": server.service.store.people.add("the admin", "admin")}
    for role in ROLES[:-1]:
        answer = server.client.post(
            "/v1/people", json={"name": role, "role": role}, headers=bearer(found["admin"])
        )
        found[role] = answer.json()["token"]
    return found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_nothing_can_be_read_or_written_without_a_token(server: Server) -> None:
    for path in ("/v1/model", "/v1/nodes/n0", "/v1/log", "/v1/events", "/v1/export/log.csv"):
        assert server.client.get(path).status_code == 401, path
    for path in ("/metrics", "/openapi.json", "/v2"):
        assert server.client.get(path).status_code in (401, 404), path
    assert server.client.put("/v1/nodes/n0/label", json={"label": "red"}).status_code == 401
    for token in ("x", "é", "x" * 5000):
        raw = f"Bearer {token}".encode()
        assert server.client.get("/v1/model", headers={"Authorization": raw}).status_code == 401  # type: ignore[dict-item]
    assert server.client.get("/healthz").status_code == 200


def test_a_role_limits_what_may_be_done(server: Server, tokens: dict[str, str]) -> None:
    label = {"label": "red"}
    edge = {"edges": [{"source": "n0", "target": "n1", "values": {"weight": 1}}]}
    expected = {
        "reader": (403, 403, 403),
        "labeler": (200, 403, 403),
        "reviewer": (200, 200, 403),
        "admin": (200, 200, 200),
    }
    for role, codes in expected.items():
        headers = bearer(tokens[role])
        found = (
            server.client.put("/v1/nodes/n0/label", json=label, headers=headers).status_code,
            server.client.post("/v1/edges", json=edge, headers=headers).status_code,
            server.client.get("/v1/people", headers=headers).status_code,
        )
        assert found == codes, role
        assert server.client.get("/v1/model", headers=headers).status_code == 200


def test_a_role_is_checked_before_the_events_of_an_undo(
    server: Server, tokens: dict[str, str]
) -> None:
    many, source = {"version": 1, "count": 100_000}, {"source": "rule"}
    for role, status in (("reader", 403), ("labeler", 403), ("reviewer", 422)):
        for body in (many, source):  # neither these events nor this source exist
            answer = server.client.post("/v1/undo", json=body, headers=bearer(tokens[role]))
            assert answer.status_code == status, (role, body)


def test_no_two_people_get_the_same_node(server: Server, tokens: dict[str, str]) -> None:
    names = []
    for _ in range(5):
        for role in ("labeler", "reviewer"):
            item = server.client.post("/v1/queue/next", headers=bearer(tokens[role])).json()["item"]
            names.append(item["node"]["id"])
    assert len(set(names)) == 10


def test_a_session_uses_a_cookie_that_scripts_and_other_sites_cannot_use(
    server: Server, tokens: dict[str, str]
) -> None:
    answer = server.client.post("/v1/session", json={"token": tokens["labeler"]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert tokens["labeler"] not in cookie
    assert server.client.get("/v1/me").json()["name"] == "labeler"
    foreign = {"Origin": "http://evil.example"}
    body = {"label": "red"}
    assert server.client.put("/v1/nodes/n0/label", json=body, headers=foreign).status_code == 403
    assert server.client.put("/v1/nodes/n0/label", json=body).status_code == 200
    server.client.delete("/v1/session")
    server.client.cookies.clear()
    assert server.client.get("/v1/me").status_code == 401
    assert server.client.post("/v1/session", json={"token": "wrong"}).status_code == 401


def test_revoked_people_lose_their_token_and_their_session(
    server: Server, tokens: dict[str, str]
) -> None:
    admin = bearer(tokens["admin"])
    body = {"name": "leaving", "role": "labeler"}
    token = server.client.post("/v1/people", json=body, headers=admin).json()["token"]
    server.client.post("/v1/session", json={"token": token})
    assert server.client.get("/v1/me").status_code == 200
    assert server.client.delete("/v1/people/leaving", headers=admin).status_code == 204
    assert server.client.get("/v1/me").status_code == 401
    server.client.cookies.clear()
    assert server.client.get("/v1/me", headers=bearer(token)).status_code == 401
    again = server.client.post("/v1/people/leaving/token", headers=admin).json()["token"]
    assert server.client.get("/v1/me", headers=bearer(again)).status_code == 200
    own = server.client.delete(f"/v1/people/{'the%20admin'}", headers=admin)
    assert own.status_code == 422


@pytest.mark.parametrize("change", ["DELETE /v1/people/leaving", "POST /v1/people/leaving/token"])
def test_the_event_stream_of_a_person_ends_with_the_token(
    server: Server, tokens: dict[str, str], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "HEARTBEAT", 1.0)
    method, path = change.split()
    admin, name = bearer(tokens["admin"]), f"leaving {method}"
    body = {"name": name, "role": "reader"}
    token = server.client.post("/v1/people", json=body, headers=admin).json()["token"]
    path = path.replace("leaving", quote(name))
    with (
        server.client.stream("GET", "/v1/events", headers=bearer(tokens["reviewer"])) as other,
        server.client.stream("GET", "/v1/events", headers=bearer(token)) as mine,
    ):
        kept, lines = other.iter_lines(), mine.iter_lines()
        assert next(kept) == next(lines) == "retry: 1000"
        assert server.client.request(method, path, headers=admin).status_code in (200, 204)
        for line in lines:
            assert not line.startswith(":"), "the stream is still open"
        server.client.post(
            "/v1/nodes/n1/notes", json={"text": "x"}, headers=bearer(tokens["labeler"])
        )
        assert any("stored" in line for line in kept)


def test_listeners_beyond_the_limit_receive_a_problem(
    server: Server, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(tokens["reader"])
    wait_until(lambda: server.service.listeners.count == 0)
    monkeypatch.setattr(listeners, "MOST_LISTENERS", 1)
    with server.client.stream("GET", "/v1/events", headers=headers) as first:
        assert first.status_code == 200
        refused = server.client.get("/v1/events", headers=headers)
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["type"].endswith(":busy")
    wait_until(lambda: server.service.listeners.count == 0)
    with server.client.stream("GET", "/v1/events", headers=headers) as again:
        assert again.status_code == 200


def wait_until(test: Callable[[], bool]) -> None:
    for _ in range(200):
        if test():
            return
        time.sleep(0.02)
    raise AssertionError("this takes too long")


def test_too_many_requests_and_too_many_wrong_tokens_are_refused(store: Store) -> None:
    now = 0.0
    limits = Limits(reads=2, writes=1, failures=1, burst=2)
    access = Access(store.people, local=False, limits=limits, clock=lambda: now)
    token = store.people.renew("labeler")
    actor = access.actor(Headers(bearer(token)), None, "here")
    for _ in range(4):
        access.limit(actor, writes=False)
    with pytest.raises(ProblemError) as refused:
        access.limit(actor, writes=False)
    assert refused.value.status == 429
    now = 1.0
    access.limit(actor, writes=False)
    codes = []
    for number in range(30):
        with pytest.raises(ProblemError) as refused:
            access.actor(Headers(bearer(f"guess {number}")), None, "there")
        codes.append(refused.value.status)
    assert codes[0] == 401
    assert codes[-1] == 429
    assert access.actor(Headers(bearer(token)), None, "there") == actor


@pytest.mark.parametrize(
    "path",
    ["/%6detrics", "/openapi%2ejson", "/%762", "/%76%31/log", "/v1%2fpeople", "/%76%31/undo"],
)
def test_an_encoded_path_reaches_no_route(server: Server, path: str) -> None:
    for method in ("GET", "POST"):
        origin = {"Origin": server.address}
        assert server.client.request(method, path, headers=origin).status_code in (401, 404, 405)
