"""The server as a process: its start, its end, and what survives when it is killed."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live_server import serving

from unimp.errors import RunError, ServiceError
from unimp.serving.front.server import Options, admin_token, check_options


def start(folder: Path, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """Start `unimp serve`; return the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unimp", "serve", str(folder), "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+?(?=/ )", line):
            return process, found[0]
    raise AssertionError("the server did not start")


@contextmanager
def client_of(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, headers={"Origin": address}, timeout=10) as client:
        yield client


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
