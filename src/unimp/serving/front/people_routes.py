"""Routes about people: who you are, sessions, and the tokens that an admin gives out."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from unimp.serving.front.access import COOKIE, LOCAL, SESSION, Access
from unimp.serving.front.answers import ERRORS, Caller, TheService, answer, decoded, documented
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.service import Service
from unimp.serving.people import NEEDS, Actor
from unimp.serving.schemas import (
    Me,
    PeopleAnswer,
    PersonRequest,
    RoleRequest,
    SessionRequest,
    TokenAnswer,
)

router = APIRouter(prefix="/v1", tags=["people"])
PersonName = Annotated[str, Path(max_length=400)]


def _access(request: Request) -> Access:
    access: Access = request.app.state.access
    return access


def _described(actor: Actor, *, local: bool) -> dict[str, Any]:
    may = [action for action in NEEDS if actor.may(action)]
    return {"name": actor.name, "role": actor.role, "may": may, "local": local}


@router.get("/me", **documented(Me))
async def me(request: Request, caller: Caller) -> Response:
    """Return who you are, and what you may do."""
    return answer(_described(caller, local=_access(request).local))


@router.post("/session", **documented(Me))
async def sign_in(request: Request, given: SessionRequest) -> Response:
    """Exchange a token for a cookie, so that the page does not store the token."""
    access = _access(request)
    actor, secret = access.start_session(given.token, request.state.address)
    response = answer(_described(actor, local=access.local))
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(SESSION),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.delete("/session", status_code=204, responses=ERRORS)
async def sign_out(request: Request) -> Response:
    """End your session."""
    _access(request).end_session(request.state.cookie)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/people", **documented(PeopleAnswer))
async def people(request: Request, caller: Caller) -> Response:
    """List all people."""
    caller.check("people")
    found = await asyncio.to_thread(_access(request).people.all)
    rows = [{"name": a.name, "role": a.role, "revoked": a.revoked} for a in found]
    return answer({"people": rows})


@router.post("/people", **documented(TokenAnswer))
async def add_person(request: Request, caller: Caller, given: PersonRequest) -> Response:
    """Add a person or a program; the answer contains the token, which is not shown again."""
    caller.check("people")
    access = _access(request)
    token = await asyncio.to_thread(access.people.add, given.name, given.role)
    access.reload()
    return answer({"name": given.name, "role": given.role, "token": token})


@router.put("/people/{name}/role", status_code=204, responses=ERRORS)
async def set_role(
    request: Request, caller: Caller, name: PersonName, given: RoleRequest
) -> Response:
    """Give a person another role."""
    access = _checked(request, caller, decoded(name))
    await asyncio.to_thread(access.people.set_role, decoded(name), given.role)
    access.reload()
    return Response(status_code=204)


@router.post("/people/{name}/token", **documented(TokenAnswer))
async def renew(
    request: Request, service: TheService, caller: Caller, name: PersonName
) -> Response:
    """Give a person a new token; the old one is not valid anymore."""
    access = _checked(request, caller, decoded(name))
    token = await asyncio.to_thread(access.people.renew, decoded(name))
    _end_access(service, access, decoded(name))
    role = next(a.role for a in access.people.all() if a.name == decoded(name))
    return answer({"name": decoded(name), "role": role, "token": token})


@router.delete("/people/{name}", status_code=204, responses=ERRORS)
async def revoke(
    request: Request, service: TheService, caller: Caller, name: PersonName
) -> Response:
    """Take the access of a person away."""
    access = _checked(request, caller, decoded(name))
    await asyncio.to_thread(access.people.revoke, decoded(name))
    _end_access(service, access, decoded(name))
    return Response(status_code=204)


def _end_access(service: Service, access: Access, name: str) -> None:
    """End the sessions and the event streams of a person, whose token was changed."""
    access.end_sessions(name)
    access.reload()
    service.listeners.end(name)


def _checked(request: Request, caller: Actor, name: str) -> Access:
    """Refuse a change of people that nobody may make, or that locks everybody out."""
    caller.check("people")
    if name in (caller.name, LOCAL):
        raise ProblemError(422, "refused", "you cannot change your own access. Ask another admin.")
    return _access(request)
