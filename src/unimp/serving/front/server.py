"""The server process: checks, one line with the address, and a clean end."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from unimp.config.run_files import MANIFEST
from unimp.data.files import sync_folder
from unimp.errors import RunError, ServiceError
from unimp.serving.front.application import create_app
from unimp.serving.front.protocol import ImpatientProtocol
from unimp.serving.front.service import Service
from unimp.serving.people import TOKEN_BYTES

ADMIN = "admin"
"""The actor whose token is in the token file."""
MOST_CONNECTIONS = 500
KEEP_ALIVE = 30
SWITCH = 0.0005
"""Seconds after which a busy thread lets another one run. The thread that stores labels needs many
turns per label; with Python's 0.005, a label would take long while many requests are read."""
GRACE = 10
"""Seconds that requests have to end when the service stops."""


@dataclass(frozen=True)
class Options:
    """Where a service listens, and who may use it."""

    host: str = "127.0.0.1"
    port: int = 8765
    token_file: Path | None = None
    allowed_hosts: Sequence[str] = ()

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check_options(folder: Path, options: Options) -> None:
    """Refuse a run that cannot be served, and an address that would be open to everybody."""
    if not (folder / MANIFEST).is_file():
        raise RunError(
            f"{folder} does not contain a finished run. Name a folder that `unimp train` wrote."
        )
    if not options.is_loopback:
        if options.token_file is None:
            raise ServiceError(
                f"--host {options.host} can be reached from other computers, so requests need "
                "tokens. Add --token-file FILE; the file is created if it does not exist."
            )
        if not options.allowed_hosts:
            raise ServiceError(
                f"--host {options.host} needs --allowed-host NAME: the name or address under which "
                "browsers reach this computer."
            )


def admin_token(path: Path) -> str:
    """The token in a file, which only its owner can read; it is created if it does not exist."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if not path.is_file():
            raise ServiceError(f"{path} is not a file. Name a file for the token.") from None
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ServiceError(
                f"{path} can be read by other users. Run: chmod 600 {path}"
            ) from None
        return path.read_text(encoding="utf-8").strip()
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(token + "\n")
    sync_folder(path.parent)
    return token


def serve(folder: Path, options: Options, print_line: Callable[[str], None]) -> None:
    """Serve a run until SIGTERM or Ctrl-C."""
    check_options(folder, options)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    sys.setswitchinterval(SWITCH)
    listening = _listen(options)
    try:
        service = Service(folder, print_line=print_line)
    except BaseException:
        listening.close()
        raise
    if options.token_file is not None:
        service.store.people.install(ADMIN, "admin", admin_token(options.token_file))
    app = create_app(
        service,
        local=options.token_file is None,
        allowed_hosts=(options.host, *options.allowed_hosts),
    )
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=32 << 10,
    )
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    who = "" if options.token_file is None else f"; the admin's token is in {options.token_file}"
    print_line(f"Serving {folder} at http://{shown}:{port}/ (stop with Ctrl-C){who}")
    uvicorn.Server(config).run(sockets=[listening])


def _listen(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sends small responses at once only on sockets that name their protocol.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
    except OSError as error:
        listening.close()
        raise ServiceError(
            f"{options.host}:{options.port} cannot be used ({error.strerror}). Choose another "
            "--port, or 0 for any free one."
        ) from None
    listening.listen(128)
    return listening
