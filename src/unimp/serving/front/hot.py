"""Reads of one published node, answered before the application looks for a route."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from unimp.serving.front.answers import decoded
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.reads import get_node, published_node, router
from unimp.serving.front.service import Service
from unimp.serving.people import Actor

NODES = "/v1/nodes/"
ROUTE = next(route for route in router.routes if getattr(route, "endpoint", None) is get_node)


def ready_response(service: Service, scope: Any) -> Response | None:
    """The response to `GET /v1/nodes/{id}` for a published node; None for all other requests.

    The guard has checked the request. Finding the route and its parameters would take several times
    as long as the answer. The route returns the same response, and also handles all other cases:
    parameters, nodes that are not published, and errors.
    """
    path: str = scope["path"]
    published = service.published
    if scope["method"] != "GET" or not path.startswith(NODES) or published is None:
        return None
    name, actor = path[len(NODES) :], scope["state"]["actor"]
    assert isinstance(actor, Actor)
    if scope["query_string"] or "/" in name or not actor.may("read"):
        return None
    if "%" in name:
        try:
            name = decoded(name)
        except ProblemError:
            return None
    number = published.numbers.get(name)
    if number is None:
        return None
    scope["route"] = ROUTE  # the name under which the request is counted
    return published_node(service, number)
