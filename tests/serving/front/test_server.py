"""The server as a process: its start, its end, and what survives when it is killed."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live_server import serving

from unimp.errors import RunError, ServiceError
from unimp.serving.checking import check
from unimp.serving.front.server import Options, admin_token, check_options
from unimp.serving.reader import Reader


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


def until_ready(client: httpx.Client) -> None:
    for _ in range(600):
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the server is not ready")


def kill_engine(parent: int) -> None:
    """Kill the child process of a server."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)


def write_with_retry(address: str, key: str, node: str, stop: threading.Event) -> int:
    """Send a label until it is acknowledged; return its version, or 0 if the test ends first."""
    while not stop.is_set():
        try:
            with client_of(address) as client:
                answer = client.put(
                    f"/v1/nodes/{node}/label",
                    json={"label": "red"},
                    headers={"Idempotency-Key": key},
                )
            if answer.status_code == 200:
                return int(answer.json()["version"])
            assert answer.status_code == 503, answer.text
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    return 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_no_label_is_lost_or_doubled_when_processes_are_killed(
    copied: Callable[[], Path],
) -> None:
    folder, stop = copied(), threading.Event()
    process, address = start(folder)
    port = int(address.rpartition(":")[2])
    versions: dict[str, int] = {}

    def client(number: int) -> None:
        count = 0
        while not stop.is_set():
            key = f"{number}-{count}"
            if version := write_with_retry(address, key, f"n{(7 * count + number) % 60}", stop):
                versions[key] = version
            count += 1

    with client_of(address) as one:
        until_ready(one)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for kill_front in (False, True, False, True):
            before = len(versions)
            while len(versions) < before + 10:
                time.sleep(0.02)
            if kill_front:
                process.kill()
                process.communicate()  # waits, and closes the pipe
                process, _ = start(folder, port)
            else:
                kill_engine(process.pid)
        before = len(versions)
        while len(versions) < before + 10:
            time.sleep(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    head = max(versions.values())
    with client_of(address) as one:
        until_ready(one)
        found = one.get("/v1/nodes/n0", params={"min_version": head})
        assert found.json()["version"] >= head
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode in (0, 143)
    assert not (folder / ".labels.lock").exists()
    with Reader(folder) as reader:
        assert check(reader) == []
        stored = {e.key: e.version for e in reader.events()}
        keys = [e.key for e in reader.events()]
    assert len(keys) == len(set(keys))
    for key, version in versions.items():
        assert stored[key] == version


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
