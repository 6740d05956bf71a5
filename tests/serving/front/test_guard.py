"""Requests that nobody should be able to send."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
from live_server import Server, serving

from unimp.serving import schemas
from unimp.serving.front.guard import Allowed

HOSTILE = (
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "..",
    "a/b/label",
    "a%2Fb",
    "' or 1=1 --",
    "new\u2028line",
    "\u202enode",
    "x" * 600,
    "%00",
    "n0?min_version=0#x",
    "💥",
)


@pytest.fixture(scope="module")
def server(copied: Callable[[], Path]) -> Iterator[Server]:
    with serving(copied(), body_time=0.5) as made:
        yield made


def label(server: Server, **options: object) -> httpx.Response:
    """Send a label with other headers than the page would."""
    with httpx.Client(base_url=server.address, timeout=60) as client:
        return client.put("/v1/nodes/n0/label", json={"label": "red"}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "127.0.0.1@evil", "a b"],
)
def test_other_host_names_are_refused_on_every_path(server: Server, host: str) -> None:
    for path in ("/", "/healthz", "/v1/model", "/metrics", "/openapi.json", "/nothing"):
        answer = server.client.get(path, headers={"Host": host})
        assert answer.status_code in (400, 421), path


def test_allowed_hosts_are_names_and_addresses() -> None:
    allowed = Allowed.of(["labels.example"])
    for host in ("labels.example", "LABELS.example:443", "127.0.0.1:8765", "[::1]:80", "localhost"):
        assert allowed.host(host)
    for host in ("example", "labels.example.evil", "127.0.0.1:port", "[::1", "a@localhost"):
        assert not allowed.host(host)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Cookie": "unimp_session=guess"},
    ],
)
def test_other_pages_cannot_write(server: Server, headers: dict[str, str]) -> None:
    head = server.service.store.reader.head()
    assert label(server, headers=headers).status_code == 403
    assert server.service.store.reader.head() == head


def test_other_pages_cannot_read(server: Server) -> None:
    answer = server.client.get("/v1/model", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    answer = server.client.get("/v1/model")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_of_the_server_can_write(server: Server) -> None:
    for headers in ({"Origin": server.address}, {"Sec-Fetch-Site": "same-origin"}):
        assert label(server, headers=headers).status_code == 200


def test_a_wrong_token_is_refused_even_where_none_is_needed(server: Server) -> None:
    answer = label(server, headers={"Authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_large_bodies_are_refused_before_and_while_they_arrive(server: Server) -> None:
    large = b'{"ids": ["' + b"x" * (2 << 20) + b'"]}'
    assert server.client.post("/v1/predict", content=large).status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * (64 << 10)

    try:
        answer = server.client.post("/v1/predict", content=parts())
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # the server stopped reading
    assert server.client.get("/healthz").status_code == 200


def test_a_body_that_does_not_arrive_ends_the_request(server: Server) -> None:
    place = urlsplit(server.address)
    assert place.port is not None
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as slow:
        slow.sendall(
            f"POST /v1/predict HTTP/1.1\r\nHost: {place.netloc}\r\nOrigin: {server.address}\r\n"
            "Content-Length: 100\r\n\r\n{".encode()
        )
        assert b" 408 " in slow.recv(1000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"ids": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"ids": [1]}',
        b'{"ids": ["n0"], "more": 1}',
        b'{"ids": ["\\ud800"]}',
        b'{"ids": ["' + b"x" * 600 + b'"]}',
        b"\xff\xfe",
    ],
)
def test_invalid_bodies_are_problems_of_the_client(server: Server, body: bytes) -> None:
    kind = {"Content-Type": "application/json"}
    answer = server.client.post("/v1/predict", content=body, headers=kind)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("node", HOSTILE)
def test_hostile_ids_find_nothing(server: Server, node: str) -> None:
    where = f"/v1/nodes/{quote(node, safe='')}"
    for path in (where, f"{where}/details", f"{where}/explanation.svg"):
        answer = server.client.get(path)
        assert answer.status_code in (404, 422), path
        assert "text/html" not in answer.headers["content-type"]
    answer = server.client.put(f"{where}/label", json={"label": "red"})
    assert answer.status_code in (404, 405, 422)


@pytest.mark.parametrize("node", ["<b>bold</b>", "a/b", "a/label", "50%", "é", "'; drop", "a?b#c"])
def test_any_visible_text_can_be_an_id(server: Server, node: str) -> None:
    body = {"nodes": [{"id": node, "values": {"size": 1.0, "kind": "a"}}]}
    version = server.client.post("/v1/nodes", json=body).json()["version"]
    where = f"/v1/nodes/{quote(node, safe='')}"
    found = server.client.get(where, params={"min_version": version}).json()
    assert found["node"]["id"] == node
    written = server.client.put(f"{where}/label", json={"label": "red"}).json()
    later = server.client.get(where, params={"min_version": written["version"]}).json()
    assert later["node"]["label"] == "red"


def test_every_answer_has_the_headers_that_protect_the_page(server: Server) -> None:
    for path in ("/", "/v1/model", "/nothing", "/docs", "/api/docs.js"):
        answer = server.client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in {name.lower() for name in answer.headers} - {"server"}


def test_files_of_the_page_are_sent_again_only_if_they_changed(server: Server) -> None:
    first = server.client.get("/api/docs.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = server.client.get("/api/docs.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/api/../access.py", "/api/%2e%2e/access.py", "/page", "/labels.db", "/v1"):
        assert server.client.get(path).status_code == 404, path


def test_unknown_methods_and_paths_are_problems(server: Server) -> None:
    assert server.client.patch("/v1/nodes/n0").status_code == 405
    assert server.client.get("/v1/nothing").status_code == 404
    assert server.client.get("/v1/nodes", params={"limit": 10**9}).status_code == 422
    assert server.client.get(f"/v1/nodes/{'x' * 20_000}").status_code in (400, 404, 414)


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), OSError("secret")])
def test_an_unexpected_error_is_a_problem_without_internals(
    server: Server,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(server.service.models, "generations", fail)
    answer = server.client.get("/v1/model")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert schemas.Problem.model_validate_json(answer.content).status == 500
    assert "secret" not in answer.text
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


def test_only_requests_with_many_rows_may_be_large(server: Server) -> None:
    large = b"x" * (2 << 20)
    for path in ("/v1/labels", "/v1/nodes", "/v1/edges"):
        assert server.client.post(path, content=large).status_code == 422, path
    for path in ("/v1/labelsx", "/v1/nodes/", "/v1/undo", "/v2/x", "/v2/models/run/infer"):
        assert server.client.post(path, content=large).status_code == 413, path
