"""Responses, and the parameters that several routes share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from unimp.serving.events import LONGEST_ID, LONGEST_KEY, MOST_VERSIONS
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import to_json
from unimp.serving.front.service import Service
from unimp.serving.people import Actor
from unimp.serving.requests import Receipt
from unimp.serving.schemas import Problem

JSON = "application/json"
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request is refused."},
    "503": {"model": Problem, "description": "Try again after Retry-After seconds."},
}


def decoded(text: str) -> str:
    """Decode a percent-encoded part of a path, which must be UTF-8."""
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise ProblemError(404, "not-found", "the id is not valid UTF-8.") from None


# FastAPI calls dependencies that are not coroutines in threads, which takes far longer than these.


async def _node(id: Annotated[str, Path(description="The id of a node, percent-encoded.")]) -> str:
    name = decoded(id)
    if len(name) > LONGEST_ID:
        raise ProblemError(404, "not-found", f"ids have at most {LONGEST_ID} characters.")
    return name


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _caller(request: Request) -> Actor:
    actor: Actor = request.state.actor
    actor.check("read")
    return actor


async def _if_match(
    if_match: Annotated[
        str | None,
        Header(
            description='The version of the label that you have seen, such as "12"; "0": none. Of '
            "many labels: the version from which they were made."
        ),
    ] = None,
) -> int | None:
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip()
    number = text.strip('"')
    if len(text) != len(number) + 2 or not (number.isascii() and number.isdigit()):
        raise ProblemError(412, "conflict", 'If-Match must be an ETag, such as "12".')
    return min(int(number[:20]), MOST_VERSIONS)


NodeId = Annotated[str, Depends(_node)]
TheService = Annotated[Service, Depends(_service)]
Caller = Annotated[Actor, Depends(_caller)]
IfMatch = Annotated[int | None, Depends(_if_match)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=rf"^[!-~]{{1,{LONGEST_KEY}}}$",
        description="A request that is repeated with its key is stored once.",
    ),
]
MinVersion = Annotated[
    int | None,
    Query(ge=0, lt=MOST_VERSIONS, description="Answer at this version or later, or with 503."),
]


async def _reached(service: TheService, min_version: MinVersion = None) -> int | None:
    await service.reach(min_version)
    return min_version


Reached = Annotated[int | None, Depends(_reached)]
"""The parameter min_version of answers about many nodes, which wait until it is published."""
Limit = Annotated[int, Query(ge=1, le=1_000)]
Offset = Annotated[int, Query(ge=0, lt=2**31)]


def answer(body: Any, **options: Any) -> Response:
    """A JSON response; its content is not validated again."""
    return Response(to_json(body), media_type=JSON, **options)


def stamped(service: Service, version: int | None = None, **more: Any) -> Response:
    """An answer with its stamp."""
    return answer({**service.stamp(version), **more})


def joined(stamp: dict[str, int], name: str, parts: Iterable[bytes], *, several: bool) -> bytes:
    """A stamp and prepared JSON under one name."""
    body = b",".join(parts)
    head = _head(tuple(stamp.items()), name)
    return head + (b"[" + body + b"]" if several else body) + b"}"


@lru_cache(maxsize=100)  # thousands of answers have the same stamp
def _head(stamp: tuple[tuple[str, int], ...], name: str) -> bytes:
    return to_json(dict(stamp))[:-1] + b',"' + name.encode() + b'":'


def written(receipt: Receipt) -> Response:
    """The answer to a write."""
    count = receipt.last - receipt.first + 1
    body = {
        "version": receipt.version,
        "first": receipt.first,
        "count": count,
        "repeated": receipt.repeated,
    }
    return answer(body)


def documented(model: type[BaseModel], **options: Any) -> dict[str, Any]:
    """Options of a route that describe its answer."""
    return {"response_model": model, "responses": ERRORS, **options}
