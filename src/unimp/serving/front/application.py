"""The application: all routes, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.types import ASGIApp

from unimp import __version__
from unimp.serving.front import (
    exports,
    health,
    inference,
    learning,
    listening,
    pages,
    people_routes,
    reads,
    training,
    writes,
)
from unimp.serving.front.access import Access, Limits
from unimp.serving.front.guard import BODY_TIME, Allowed, Guard
from unimp.serving.front.health import Meter
from unimp.serving.front.hot import ready_response
from unimp.serving.front.problems import add_handlers
from unimp.serving.front.service import Service

ABOUT = "Labels that arrive change predictions at once, without training."


def create_app(
    service: Service,
    *,
    local: bool,
    allowed_hosts: Iterable[str] = (),
    limits: Limits | None = None,
    body_time: float = BODY_TIME,
) -> ASGIApp:
    """The application of a service, which it starts and closes.

    local: requests without a token come from the admin `local`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.close()

    app = FastAPI(
        title="unimp serve",
        description=ABOUT,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service, app.state.meter, app.state.files = service, Meter(), pages.read_files()
    app.state.access = Access(service.store.people, local=local, limits=limits)
    add_handlers(app)
    for module in (
        *(reads, writes, learning, listening, exports, people_routes, training),
        *(health, inference, pages),
    ):
        app.include_router(module.router)
    return Guard(
        app,
        access=app.state.access,
        allowed=Allowed.of(allowed_hosts),
        count=app.state.meter.count,
        ready=partial(ready_response, service),
        body_time=body_time,
    )
