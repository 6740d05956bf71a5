"""Prepared reads: the same responses as the routes, and nothing that the routes would refuse."""

from urllib.parse import quote

import httpx
import pytest
from live_server import Server


def plain_and_routed(server: Server, path: str) -> tuple[httpx.Response, httpx.Response]:
    """A read that is answered from prepared bytes, and the same one through the routes."""
    return server.client.get(path), server.client.get(f"{path}?min_version=0")


def without_time(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "date"}


@pytest.mark.parametrize("node", ["n0", "n1", "n59", "%6E2", "n2"])
def test_a_prepared_read_is_the_response_of_the_route(server: Server, node: str) -> None:
    plain, routed = plain_and_routed(server, f"/v1/nodes/{node}")
    assert plain.status_code == 200
    assert plain.content == routed.content
    assert without_time(plain) == without_time(routed)


@pytest.mark.parametrize("node", ["nobody", "%ff", "n0/", "", "x" * 600, quote("<b>", safe="")])
def test_other_reads_are_answered_by_the_routes(server: Server, node: str) -> None:
    plain = server.client.get(f"/v1/nodes/{node}")
    if node:
        assert plain.status_code == 404
        assert plain.headers["content-type"] == "application/problem+json"
    else:
        assert plain.status_code in (200, 404)
    assert server.client.head("/v1/nodes/n0").status_code == 405


def test_a_prepared_read_follows_a_label(server: Server) -> None:
    before = server.client.get("/v1/nodes/n4")
    version = server.client.put("/v1/nodes/n4/label", json={"label": "red"}).json()["version"]
    after = server.client.get("/v1/nodes/n4", params={"min_version": version}).json()
    assert after["node"]["label"] == "red"
    while server.client.get("/v1/nodes/n0").json()["version"] < version:
        pass
    now = server.client.get("/v1/nodes/n4")
    assert now.json()["node"] == after["node"]
    assert now.headers["etag"] == f'"{version}"'
    assert before.headers["etag"] == '"0"'


def test_prepared_reads_are_counted_under_their_route(server: Server) -> None:
    server.client.get("/v1/nodes/n0")
    metrics = server.client.get("/metrics").text
    assert 'route="/v1/nodes/{id}",status="200"' in metrics


def test_prepared_reads_pass_the_guard(server: Server) -> None:
    refused = server.client.get("/v1/nodes/n0", headers={"Host": "evil.example"})
    assert refused.status_code == 421
    foreign = server.client.get("/v1/nodes/n0", headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    wrong = server.client.get("/v1/nodes/n0", headers={"Authorization": "Bearer nothing"})
    assert wrong.status_code == 401
