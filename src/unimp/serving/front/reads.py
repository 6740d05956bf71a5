"""Routes that read predictions and events."""

from __future__ import annotations

import asyncio
import io
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from unimp.serving.events import MOST_VERSIONS, Event
from unimp.serving.front.answers import (
    JSON,
    Caller,
    Limit,
    MinVersion,
    NodeId,
    Offset,
    Reached,
    TheService,
    answer,
    documented,
    joined,
    stamped,
)
from unimp.serving.front.published import to_json
from unimp.serving.front.rankings import ANSWER
from unimp.serving.front.service import Service
from unimp.serving.reader import FIELDS, event_of
from unimp.serving.schemas import (
    ChangesAnswer,
    DetailsAnswer,
    LogAnswer,
    ModelAnswer,
    NodeAnswer,
    NodePage,
    NodesAnswer,
    PredictRequest,
)
from unimp.serving.state import IN_FORCE

ARROW = "application/vnd.apache.arrow.stream"
MOST_HISTORY = 200
router = APIRouter(prefix="/v1", tags=["read"])


@router.get("/nodes/{id}", **documented(NodeAnswer))
async def get_node(
    service: TheService, caller: Caller, node: NodeId, min_version: MinVersion = None
) -> Response:
    """Return a node with its label and its prediction."""
    if not await service.must_pull(min_version):
        return published_node(service, service.number(node))
    stamp, nodes = await service.pull([node])
    return _node(to_json({**stamp, "node": nodes[0]}), nodes[0]["label_version"])


def published_node(service: Service, number: int) -> Response:
    """The answer about a node from the published state."""
    prepared = service.ready().prepared(number)
    body = joined(service.stamp(), "node", [prepared.body], several=False)
    return _node(body, prepared.label_version)


def _node(body: bytes, label_version: int) -> Response:
    return Response(body, headers={"ETag": f'"{label_version}"'}, media_type=JSON)


@router.post("/predict", **documented(NodesAnswer))
async def predict(
    request: Request,
    service: TheService,
    caller: Caller,
    asked: PredictRequest,
    min_version: MinVersion = None,
) -> Response:
    """Return the predictions of some nodes, as JSON or as an Arrow stream."""
    if not await service.must_pull(min_version):
        published = service.ready()
        numbers = [service.number(name) for name in asked.ids]
        if ARROW in request.headers.get("accept", ""):
            headers = {f"Unimp-{k.title()}": str(v) for k, v in service.stamp().items()}
            table = published.table(numbers)
            return Response(await asyncio.to_thread(_stream, table), 200, headers, ARROW)
        rows = [published.prepared(number).body for number in numbers]
        return Response(joined(service.stamp(), "nodes", rows, several=True), media_type=JSON)
    stamp, nodes = await service.pull(asked.ids)
    return answer({**stamp, "nodes": nodes})


def _stream(table: Any) -> bytes:
    import pyarrow as pa

    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


@router.get("/nodes", **documented(NodePage))
async def get_nodes(
    service: TheService,
    caller: Caller,
    q: Annotated[str, Query(max_length=512)] = "",
    prediction: Annotated[str, Query(max_length=512)] = "",
    label: Annotated[str, Query(max_length=512)] = "",
    state: Literal["all", "labeled", "unlabeled"] = "all",
    sort: Literal["id", "confidence", "-confidence"] = "id",
    reached: Reached = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> Response:
    """Search and filter nodes."""
    published = service.ready()
    found = await asyncio.to_thread(
        published.find, q=q, prediction=prediction, label=label, state=state, sort=sort
    )
    rows = [published.node(n) for n in found[offset : offset + limit].tolist()]
    stamp = service.stamp(published.version, published.generation)
    return answer({**stamp, "total": len(found), "nodes": rows})


@router.get("/nodes/{id}/details", **documented(DetailsAnswer))
async def get_details(
    service: TheService, caller: Caller, node: NodeId, reached: Reached = None
) -> Response:
    """Return everything about a node: its columns, its neighbors and its history."""
    published = service.ready()
    found = await service.engine.ask("details", timeout=ANSWER, node=node)
    history = await asyncio.to_thread(service.store.reader.history, node)
    neighbors = []
    for name, direction in found["neighbors"]:
        one = published.node(published.numbers[name])
        neighbors.append(
            {
                "id": name,
                "direction": direction,
                "label": one["label"],
                "prediction": one["prediction"],
            }
        )
    return stamped(
        service,
        published.version,
        generation=published.generation,
        node=published.node(published.numbers[node]),
        columns=found["columns"],
        neighbors=neighbors,
        num_neighbors=found["num_neighbors"],
        history=[log_event(event, force) for event, force in history[: -MOST_HISTORY - 1 : -1]],
    )


@router.get("/changes", **documented(ChangesAnswer))
async def get_changes(
    service: TheService,
    caller: Caller,
    since: Annotated[int, Query(ge=0, lt=MOST_VERSIONS)],
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    cursor: Annotated[str, Query(pattern=r"^([0-9]{1,16}-[0-9]{1,16})?$")] = "",
    reached: Reached = None,
) -> Response:
    """Return the nodes whose label or prediction changed since a version."""
    published = service.ready()
    version, _, number = cursor.partition("-")
    after = (int(version), int(number)) if cursor else (since, len(published.ids))
    reset = since < published.first
    found = [] if reset else published.changed_since(since, after, limit)
    more = len(found) == limit
    last = f"{published.moved_at[found[-1]]}-{found[-1]}" if more else None
    rows = [published.node(n) for n in found]
    return stamped(service, since=since, reset=reset, nodes=rows, next=last)


@router.get("/log", **documented(LogAnswer))
async def get_log(
    service: TheService,
    caller: Caller,
    before: Annotated[int | None, Query(ge=1, lt=MOST_VERSIONS)] = None,
    limit: Limit = 100,
    node: Annotated[str, Query(max_length=512)] = "",
    actor: Annotated[str, Query(max_length=100)] = "",
    kind: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Return events, the newest first; all acknowledged ones are there."""
    head = service.acknowledged
    rows = await asyncio.to_thread(_events, service, before, limit, node, actor, kind)
    events = [log_event(event_of(row[:-1]), bool(row[-1])) for row in rows]
    last = events[-1]["version"] if len(events) == limit else None
    return stamped(service, head, events=events, next=last)


def _events(
    service: Service, before: int | None, limit: int, node: str, actor: str, kind: str
) -> list[Any]:
    tests, values = ["version < ?"], [before or MOST_VERSIONS]
    for column, value in (("node", node), ("actor", actor), ("kind", kind)):
        if value:
            tests.append(f"{column} = ?")
            values.append(value)  # type: ignore[arg-type]
    query = (
        f"select {FIELDS}, {IN_FORCE} from event where {' and '.join(tests)} "
        "order by version desc limit ?"
    )
    return service.store.reader.rows(query, (*values, limit))


def log_event(event: Event, in_force: bool) -> dict[str, Any]:
    """An event as in `schemas.LogEvent`."""
    write = event.write.model_dump(exclude={"kind", "source"})
    write.pop("run", None)
    predicted = event.predicted
    return {
        "version": event.version,
        "at": event.at,
        "actor": event.actor,
        "source": event.source,
        "kind": event.write.kind,
        "in_force": in_force,
        **write,
        "predicted": None if predicted is None else predicted.label,
        "probability": None if predicted is None else predicted.probability,
        "drawn": event.drawn,
    }


@router.get("/model", **documented(ModelAnswer))
async def get_model(service: TheService, caller: Caller, reached: Reached = None) -> Response:
    """Describe the model, its classes and the state of the service."""
    published = service.ready()
    here = sum(label is not None for label, version in published.labels.values() if version)
    return stamped(
        service,
        **published.about,
        classes=published.classes,
        num_nodes=len(published.ids),
        labeled=int(published.observed.sum()),
        labeled_here=here,
        near=published.near,
        engine=service.engine_state,
        generations=service.models.generations(),
    )
