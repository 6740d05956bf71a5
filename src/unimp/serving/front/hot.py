"""Reads of one published node, answered before the application looks for a route."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from unimp.serving.front.answers import decoded
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.reads import get_node, published_node, router
from unimp.serving.front.service import Service
from unimp.serving.people import Actor

NODES = "/v1/nodes/"
ROUTE = next(route for route in router.routes if getattr(route, "endpoint", None) is get_node)


class HotReads:
    """Answers `GET /v1/nodes/{id}` for a published node; passes on all other requests.

    Finding the route and its parameters takes several times as long as the answer itself. The guard
    has checked the request already. The route itself returns the same response, so it also
    answers whatever is not plain here: parameters, nodes that are not published, and errors.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = self._number(scope)
        if number is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = ROUTE  # the name under which the request is counted
        await published_node(self._service, number)(scope, receive, send)

    def _number(self, scope: Scope) -> int | None:
        """The number of the node that a plain read asks for."""
        published = self._service.published
        if published is None or scope["type"] != "http" or scope["method"] != "GET":
            return None
        path: str = scope["path"]
        if scope["query_string"] or not path.startswith(NODES):
            return None
        name = path[len(NODES) :]
        actor: Actor = scope["state"]["actor"]
        if "/" in name or not actor.may("read"):
            return None
        if "%" in name:
            try:
                name = decoded(name)
            except ProblemError:
                return None
        return published.numbers.get(name)
