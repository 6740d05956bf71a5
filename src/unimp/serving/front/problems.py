"""Errors as problem JSON (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from unimp.errors import (
    BrokenError,
    BusyError,
    ConflictError,
    ForbiddenError,
    InvalidWriteError,
    KeyReusedError,
    ServiceError,
    UnimpError,
    UnknownNodeError,
    printable,
)
from unimp.serving.front.engine_link import EngineError, RefusedError
from unimp.serving.front.published import to_json

MEDIA_TYPE = "application/problem+json"
MOST_PROBLEMS = 1_000
"""Problems in one response."""
TITLES = {
    "invalid": "The request is not valid.",
    "conflict": "Somebody else changed the node first.",
    "key-reused": "The idempotency key belongs to another request.",
    "forbidden": "This is not allowed.",
    "busy": "The service is busy.",
    "broken": "The disk failed; the service only reads.",
    "not-found": "There is nothing here.",
    "too-large": "The request is too large.",
    "behind": "The answer at this version is not available yet.",
    "unauthorized": "A token is needed.",
    "refused": "The request cannot be carried out.",
    "rate": "Too many requests.",
    "engine": "The model cannot answer now.",
    "method": "This method does not exist here.",
    "error": "An unexpected error occurred.",
}


class ProblemError(Exception):
    """An error with its status and the kind of its problem."""

    def __init__(
        self, status: int, kind: str, detail: str, *, retry_after: int = 0, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.retry_after, self.more = retry_after, more

    def response(self) -> Response:
        return problem(
            self.status, self.kind, self.detail, retry_after=self.retry_after, **self.more
        )


def problem(status: int, kind: str, detail: str, *, retry_after: int = 0, **more: Any) -> Response:
    """The response for a problem."""
    body = {
        "type": f"urn:unimp:problem:{kind}",
        "title": TITLES[kind],
        "status": status,
        "detail": printable(detail),
        **more,
    }
    headers = {"Retry-After": str(retry_after)} if retry_after else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(to_json(body), status, headers, MEDIA_TYPE)


KINDS: tuple[tuple[type[UnimpError], int, str, int], ...] = (
    (KeyReusedError, 422, "key-reused", 0),
    (ForbiddenError, 403, "forbidden", 0),
    (BusyError, 503, "busy", 1),
    (BrokenError, 503, "broken", 60),
    (EngineError, 503, "engine", 1),
    (UnknownNodeError, 404, "not-found", 0),
    (RefusedError, 422, "refused", 0),
    (ServiceError, 422, "invalid", 0),
    (UnimpError, 422, "refused", 0),
)


def of_error(error: Exception) -> Response:
    """The response for any exception; the details of an unexpected error are not shown."""
    match error:
        case ProblemError():
            return error.response()
        case InvalidWriteError():
            found = [{"place": p, "problem": printable(w)} for p, w in error.problems]
            return problem(422, "invalid", str(error), problems=found[:MOST_PROBLEMS])
        case ConflictError():
            return problem(412, "conflict", str(error), versions=error.versions)
        case RequestValidationError() | ValidationError():
            return problem(422, "invalid", _in_words(error))
        case HTTPException():
            return _of_http(error)
    for kind, status, name, retry_after in KINDS:
        if isinstance(error, kind):
            return problem(status, name, str(error), retry_after=retry_after)
    return problem(500, "error", "the request failed; the log of the service states why.")


def _of_http(error: HTTPException) -> Response:
    kinds: Mapping[int, str] = {404: "not-found", 405: "method", 401: "unauthorized"}
    kind = kinds.get(error.status_code, "invalid" if error.status_code < 500 else "error")
    return problem(error.status_code, kind, str(error.detail))


def _in_words(error: RequestValidationError | ValidationError) -> str:
    """The first problems of a request: where, and what."""
    words = []
    for one in error.errors()[:5]:
        place = ".".join(str(part)[:100] for part in one["loc"])
        words.append(f"{place}: {one['msg']}")
    return "; ".join(words)


def add_handlers(app: FastAPI) -> None:
    """Answer every exception with problem JSON."""

    async def handle(request: Request, error: Exception) -> Response:
        return of_error(error)

    # Without the last one, the answer to an unexpected error would be plain text.
    expected = (ProblemError, UnimpError, RequestValidationError, ValidationError, HTTPException)
    for kind in (*expected, Exception):
        app.add_exception_handler(kind, handle)
