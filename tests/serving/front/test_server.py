"""The server as a process: its start, its options, and the processes that it starts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from live_server import serving

from unimp.config.run_files import WEIGHTS
from unimp.errors import RunError, ServiceError
from unimp.serving.front.application import create_app
from unimp.serving.front.engine_link import RefusedError, ask_once
from unimp.serving.front.names import write_names
from unimp.serving.front.server import Options, admin_token, check_options
from unimp.serving.front.service import Service


def test_the_front_does_not_import_torch() -> None:
    code = "import sys, unimp.serving.front.server, unimp.cli.serve; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_after_an_error_of_the_disk_labels_are_refused_and_predictions_are_not(
    copied: Callable[[], Path],
) -> None:
    with serving(copied()) as server:

        def fail(db: object) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(ServiceError):
            server.service.store.writer.submit(fail).result()
        answer = server.client.put("/v1/nodes/n0/label", json={"label": "red"})
        assert answer.status_code == 503
        assert answer.json()["type"].endswith("broken")
        assert server.client.get("/v1/nodes/n0").status_code == 200
        assert server.client.get("/readyz").status_code == 503


def test_the_engine_ends_only_when_the_front_decides(copied: Callable[[], Path]) -> None:
    """A terminal or a supervisor may send the signal to all processes of the service."""
    with serving(copied()) as server:
        assert server.service.engine.pid is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(server.service.engine.pid, number)
        written = server.client.put("/v1/nodes/n0/label", json={"label": "red"}).json()
        at = {"min_version": written["version"]}
        assert server.client.get("/v1/nodes", params=at).status_code == 200
        assert server.service.engine.starts == 1


def test_labels_of_binary_tasks_are_read_from_tables_before_the_model_is_loaded(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    write_names(folder, ["n0", "n1"], ["red", "green"], several=True)
    service = Service(folder)  # its engine is not started
    app = create_app(service, local=True)

    async def post() -> httpx.Response:
        transport, address = httpx.ASGITransport(app), "http://127.0.0.1"
        headers = {"Content-Type": "text/csv", "Origin": address}
        async with httpx.AsyncClient(transport=transport, base_url=address) as client:
            body = "node,label\nn0,red;green\n"
            return await client.post("/v1/labels", content=body, headers=headers)

    try:
        assert asyncio.run(post()).status_code == 200
        (event,) = service.store.reader.events()
        assert set(event.write.label) == {"red", "green"}
    finally:
        service.store.close()


def test_the_auditor_states_why_it_cannot_answer(copied: Callable[[], Path]) -> None:
    folder = copied()
    Service(folder).store.close()
    (folder / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(RefusedError, match=WEIGHTS):
        asyncio.run(ask_once("auditor", [str(folder)], timeout=60))


def test_two_servers_cannot_serve_one_run(copied: Callable[[], Path]) -> None:
    folder = copied()
    with serving(folder):
        done = subprocess.run(
            [sys.executable, "-m", "unimp", "serve", str(folder), "--port", "0"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "is served by" in done.stderr


def test_an_open_address_needs_a_token_and_a_name(copied: Callable[[], Path]) -> None:
    folder = copied()
    check_options(folder, Options("127.0.0.1"))
    with pytest.raises(ServiceError, match="--token-file"):
        check_options(folder, Options("0.0.0.0"))
    with pytest.raises(ServiceError, match="--allowed-host"):
        check_options(folder, Options("0.0.0.0", token_file=Path("x")))
    with pytest.raises(RunError, match="finished run"):
        check_options(folder.parent, Options())


def test_the_token_of_the_admin_is_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = admin_token(path)
    assert len(token) >= 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert admin_token(path) == token
    path.chmod(0o644)
    with pytest.raises(ServiceError, match="chmod 600"):
        admin_token(path)
    with pytest.raises(ServiceError, match="is not a file"):
        admin_token(tmp_path)
