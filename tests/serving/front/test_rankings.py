"""Rankings that are computed in the background and kept."""

import time

import pytest
from live_server import Server

from unimp.serving.front import rankings
from unimp.serving.front.engine_link import EngineError, RefusedError
from unimp.serving.wire import Message


@pytest.mark.parametrize(("error", "status"), [(EngineError("x"), 503), (RefusedError("x"), 422)])
def test_an_audit_that_fails_is_repeated_only_after_a_while(
    server: Server, error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    async def failing(*, timeout: float) -> Message:
        started.append(timeout)
        raise error

    server.service.rankings.forget()
    with monkeypatch.context() as patch:
        patch.setattr(server.service, "audit", failing)
        patch.setattr(rankings, "RETRY", 1.0)
        for _ in range(5):
            assert server.client.get("/v1/audit").status_code == status
        assert len(started) == 1
        time.sleep(1.1)
        assert server.client.get("/v1/audit").status_code == status
        assert len(started) == 2
        server.service.rankings.forget()  # as after the activation of another model
        assert server.client.get("/v1/audit").status_code == status
        assert len(started) == 3
        time.sleep(1.1)
    assert server.client.get("/v1/audit").status_code == 200


def test_an_older_audit_is_returned_while_new_ones_fail(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = server.client.get("/v1/audit").json()
    version = server.client.put("/v1/nodes/n0/label", json={"label": "red"}).json()["version"]
    server.client.get("/v1/model", params={"min_version": version})
    started = []

    async def failing(*, timeout: float) -> Message:
        started.append(timeout)
        raise EngineError("x")

    monkeypatch.setattr(server.service, "audit", failing)
    server.service.rankings._next_audit = 0.0
    for _ in range(5):
        assert server.client.get("/v1/audit").json()["version"] == before["version"]
        time.sleep(0.05)
    assert len(started) == 1
