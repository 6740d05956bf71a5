"""A server in a thread of the tests, with a client."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from unimp.serving.front.application import create_app
from unimp.serving.front.service import Service


@dataclass
class Server:
    """A running server; `client` sends the header that the page of the server would send."""

    address: str
    service: Service
    client: httpx.Client

    def ready(self) -> None:
        for _ in range(600):
            if self.client.get("/readyz").status_code == 200:
                return
            time.sleep(0.1)
        raise AssertionError("the server is not ready")


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    """Serve a run folder until the block ends."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        service = Service(folder)
        app = create_app(service, **{"local": True, **options})
        server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=address, headers={"Origin": address}, timeout=60) as client:
                made = Server(address, service, client)
                made.ready()
                yield made
        finally:
            server.should_exit = True
            thread.join()
