"""Routes that store events."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from unimp.errors import InvalidWriteError
from unimp.serving.events import (
    LONGEST_NAME,
    Label,
    NewEdge,
    NewNode,
    Note,
    RemovedEdge,
    Retraction,
    Skip,
    Undo,
    Withdrawal,
    Write,
)
from unimp.serving.front.answers import (
    ERRORS,
    Caller,
    IfMatch,
    Key,
    NodeId,
    TheService,
    documented,
    written,
)
from unimp.serving.front.bulk import Labels, labels_of
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.rankings import ANSWER
from unimp.serving.front.service import Service
from unimp.serving.people import FEW
from unimp.serving.schemas import (
    EdgesRequest,
    LabelRequest,
    LabelsRequest,
    NodesRequest,
    NoteRequest,
    UndoRequest,
    Written,
)

router = APIRouter(prefix="/v1", tags=["write"])
Source = Annotated[str | None, Query(min_length=1, max_length=LONGEST_NAME)]


def _matching(node: str, if_match: int | None) -> dict[str, int]:
    return {} if if_match is None else {node: if_match}


@router.put("/nodes/{id}/label", **documented(Written))
async def put_label(
    service: TheService,
    caller: Caller,
    node: NodeId,
    given: LabelRequest,
    key: Key = None,
    if_match: IfMatch = None,
) -> Response:
    """Set the label of a node."""
    write = Label(node=node, label=given.label, source=given.source)
    match = _matching(node, if_match)
    return written(await service.write(caller.name, [write], key=key, if_match=match))


@router.delete("/nodes/{id}/label", **documented(Written))
async def delete_label(
    service: TheService,
    caller: Caller,
    node: NodeId,
    key: Key = None,
    if_match: IfMatch = None,
    source: Source = None,
) -> Response:
    """Remove the label of a node, also one that the run itself contains."""
    match = _matching(node, if_match)
    write = Retraction(node=node, source=source)
    return written(await service.write(caller.name, [write], key=key, if_match=match))


@router.post("/nodes/{id}/skip", **documented(Written))
async def skip(service: TheService, caller: Caller, node: NodeId, key: Key = None) -> Response:
    """Do not offer the node to you again."""
    return written(await service.write(caller.name, [Skip(node=node)], key=key))


@router.post("/nodes/{id}/notes", **documented(Written))
async def add_note(
    service: TheService, caller: Caller, node: NodeId, given: NoteRequest, key: Key = None
) -> Response:
    """Attach a note to a node."""
    return written(await service.write(caller.name, [Note(node=node, text=given.text)], key=key))


@router.post(
    "/labels",
    response_model=Written,
    responses=ERRORS,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": LabelsRequest.model_json_schema()},
                "text/csv": {"schema": {"type": "string"}},
                "application/vnd.apache.parquet": {"schema": {"type": "string"}},
            },
        }
    },
)
async def add_labels(
    request: Request,
    service: TheService,
    caller: Caller,
    key: Key = None,
    if_match: IfMatch = None,
    source: Source = None,
) -> Response:
    """Store many labels, all or nothing: JSON, CSV, or Parquet with the columns node and label.

    If-Match names the version of the labels that the file was made from. If the label of one of its
    nodes changed since, nothing is stored, and the answer lists these nodes.
    """
    kind = request.headers.get("content-type", "")
    several = service.several
    body = await request.body()
    given = await asyncio.to_thread(labels_of, kind, body, several=several)
    writes = await asyncio.to_thread(_label_writes, given, given.source or source)
    if given.problems:
        more = await asyncio.to_thread(service.store.problems_of, tuple(writes))
        found = [*given.problems, *((given.rows[n][0], what) for n, what in more)]
        raise InvalidWriteError(sorted(found))
    if not writes:
        raise ProblemError(422, "invalid", "the request contains no labels.")
    return written(await service.write(caller.name, writes, key=key, made_from=if_match))


def _label_writes(given: Labels, source: str | None) -> list[Write]:
    return [
        Retraction(node=node, source=source)
        if label is None
        else Label(node=node, label=label, source=source)
        for _, node, label in given.rows
    ]


@router.post("/nodes", **documented(Written))
async def add_nodes(
    service: TheService, caller: Caller, given: NodesRequest, key: Key = None
) -> Response:
    """Add nodes, and edges to them, through the transforms of the run."""
    _refuse_loops(given.edges)
    if not given.nodes and not given.edges:
        raise ProblemError(422, "invalid", "the request contains no nodes and no edges.")
    for kind, rows in (("node", given.nodes), ("edge", given.edges)):
        if rows:
            caller.check(kind)  # before the engine works for somebody who may not write
    await _check(service, given.nodes, given.edges)
    nodes: list[Write] = [
        NewNode(node=one.id, values=one.values, source=given.source) for one in given.nodes
    ]
    edges = [
        NewEdge(node=e.source, target=e.target, values=e.values, source=given.source)
        for e in given.edges
    ]
    return written(await service.write(caller.name, [*nodes, *edges], key=key))


@router.post("/edges", **documented(Written))
async def add_edges(
    service: TheService, caller: Caller, given: EdgesRequest, key: Key = None
) -> Response:
    """Add edges, or replace the values of edges that exist."""
    return await add_nodes(
        service, caller, NodesRequest(nodes=[], edges=given.edges, source=given.source), key
    )


@router.delete("/edges", **documented(Written))
async def remove_edges(
    service: TheService, caller: Caller, given: EdgesRequest, key: Key = None
) -> Response:
    """Remove edges."""
    _refuse_loops(given.edges)
    if service.ready().near:
        raise ProblemError(
            422, "refused", "the edges of this run come from nearest neighbors; they stay."
        )
    edges = [
        RemovedEdge(node=one.source, target=one.target, source=given.source) for one in given.edges
    ]
    return written(await service.write(caller.name, edges, key=key))


@router.post("/undo", **documented(Written))
async def undo(
    service: TheService, caller: Caller, given: UndoRequest, key: Key = None
) -> Response:
    """Undo events, or withdraw all labels of a source."""
    if (given.version is None) == (given.source is None):
        raise ProblemError(422, "invalid", "give either a version or a source.")
    if given.source is not None and "count" in given.model_fields_set:
        what = "give a count only with a version; a source is withdrawn as a whole."
        raise ProblemError(422, "invalid", what)
    caller.check("undo" if given.source is None else "withdraw")
    if given.count > FEW:
        caller.check("many")  # before many writes are made for somebody who may not store them
    writes: list[Write]
    if given.version is None:
        writes = [Withdrawal(withdrawn=str(given.source))]
    elif given.version + given.count - 1 > service.acknowledged:
        what = f"the last event is {service.acknowledged}; undo only events up to this version."
        raise ProblemError(422, "invalid", what)
    else:
        writes = await asyncio.to_thread(_undos, given.version, given.count)
    return written(await service.write(caller.name, writes, key=key))


def _undos(first: int, count: int) -> list[Write]:
    return [Undo(undoes=version) for version in range(first, first + count)]


async def _check(service: Service, nodes: list[Any], edges: list[Any]) -> None:
    """Refuse values that the engine could not encode later."""
    await service.engine.ask(
        "check",
        timeout=ANSWER,
        nodes=[one.model_dump() for one in nodes],
        edges=[one.model_dump() for one in edges],
    )


def _refuse_loops(edges: list[Any]) -> None:
    problems = [
        (place, f"the edge of {edge.source!r} to itself cannot be changed")
        for place, edge in enumerate(edges)
        if edge.source == edge.target
    ]
    if problems:
        raise InvalidWriteError(problems)
