"""Routes of the learning loop: suggestions, the queue, doubtful labels, reasons and effects."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from unimp.errors import ConflictError, UnknownNodeError
from unimp.serving.accuracy import live_accuracy
from unimp.serving.events import Label
from unimp.serving.front.answers import (
    ERRORS,
    Caller,
    IfMatch,
    Key,
    Limit,
    NodeId,
    Offset,
    Reached,
    TheService,
    answer,
    documented,
    stamped,
    written,
)
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import Published
from unimp.serving.front.rankings import ANSWER
from unimp.serving.front.service import Service
from unimp.serving.queue import Item
from unimp.serving.schemas import (
    AccuracyAnswer,
    AuditAnswer,
    ExplanationAnswer,
    ItemAnswer,
    ItemsAnswer,
    NextRequest,
    SuggestAnswer,
    WhatIfAnswer,
    WhatIfRequest,
    Written,
)

router = APIRouter(prefix="/v1", tags=["learn"])
RANKED = 200
"""Nodes of a ranking that the queue tries."""
ACCEPTED, KEPT = "audit: accepted", "audit: kept"
"""The sources of labels that somebody decided on in the audit."""
About = Annotated[str | None, Query(max_length=512, description="A class; the most likely one.")]


@router.get("/suggest", **documented(SuggestAnswer))
async def suggest(
    service: TheService, caller: Caller, limit: Limit = 50, reached: Reached = None
) -> Response:
    """Return the nodes whose labels would help most."""
    version, rows = await service.rankings.suggested(limit, reached)
    return stamped(service, version, suggestions=rows[:limit])


@router.post("/queue/next", **documented(ItemAnswer))
async def next_item(
    service: TheService, caller: Caller, given: NextRequest | None = None
) -> Response:
    """Lease the next node to label; nobody else gets it for ten minutes."""
    published = service.ready()
    ranking: list[str] = []
    why: dict[str, str] = {}
    wanted = given.ranking if given else "suggested"
    if wanted == "suggested":
        _, rows = await service.rankings.suggested(RANKED)
        ranking = [row["node"] for row in rows]
        why = {row["node"]: row["why"] for row in rows}
    elif wanted == "doubtful":
        ranking = await asyncio.to_thread(published.doubtful, RANKED)
    future = service.queue.next(caller.name, ranking, published.population)
    item = await asyncio.wrap_future(future)
    found = None if item is None else _item(service, item, why.get(item.node, ""))
    return stamped(service, item=found)


@router.get("/queue/mine", **documented(ItemsAnswer))
async def my_items(service: TheService, caller: Caller) -> Response:
    """Return your leases."""
    held = await asyncio.to_thread(service.queue.held, caller.name)
    return stamped(service, items=[_item(service, item, "") for item in held])


@router.delete("/queue/{id}", status_code=204, responses=ERRORS)
async def release(service: TheService, caller: Caller, node: NodeId) -> Response:
    """End a lease without an answer."""
    caller.check("claim")
    await asyncio.to_thread(service.queue.release, caller.name, node)
    return Response(status_code=204)


def _item(service: Service, item: Item, why: str) -> dict[str, Any]:
    node = service.ready().node(service.number(item.node))
    return {"node": node, "drawn": item.drawn, "until": item.until, "why": why}


@router.get("/audit", **documented(AuditAnswer))
async def get_audit(
    service: TheService,
    caller: Caller,
    offset: Offset = 0,
    limit: Limit = 50,
    reached: Reached = None,
) -> Response:
    """Return known labels that the model doubts, without those that somebody kept."""
    version, found = await service.rankings.audited(reached)
    generation = service.generation
    doubts = await asyncio.to_thread(_open_doubts, service, found["doubts"], version)
    return stamped(
        service,
        version,
        generation=generation,
        total=len(doubts),
        disagreements=sum(doubt["margin"] > 0 for doubt in doubts),
        folds=found["folds"],
        doubts=doubts[offset : offset + limit],
    )


def _open_doubts(
    service: Service, doubts: list[dict[str, Any]], version: int
) -> list[dict[str, Any]]:
    """The doubts of an audit at a version about labels that nobody decided on since, with their
    label versions."""
    published = service.ready()
    query = "select node, version, source, changed from now"
    now = {row[0]: row[1:] for row in service.store.reader.rows(query)}
    found = []
    for doubt in doubts:
        label_version, source, changed = now.get(doubt["node"], (0, None, 0))
        if source == KEPT or changed > version or doubt["node"] not in published.numbers:
            continue
        found.append({**doubt, "task": doubt.get("task"), "label_version": label_version})
        found[-1].pop("rank", None)
    return found


@router.post("/audit/{id}/accept", **documented(Written))
async def accept(
    service: TheService, caller: Caller, node: NodeId, key: Key = None, if_match: IfMatch = None
) -> Response:
    """Replace a doubtful label by the suggested one."""
    return await _decide(service, caller.name, node, key, if_match, accepted=True)


@router.post("/audit/{id}/keep", **documented(Written))
async def keep(
    service: TheService, caller: Caller, node: NodeId, key: Key = None, if_match: IfMatch = None
) -> Response:
    """Confirm a doubtful label; it is not listed again."""
    return await _decide(service, caller.name, node, key, if_match, accepted=False)


async def _decide(
    service: Service,
    actor: str,
    node: str,
    key: str | None,
    if_match: int | None,
    *,
    accepted: bool,
) -> Response:
    published = service.ready()
    label: Any
    label, version = published.label(service.number(node))
    if label is None:
        raise ProblemError(422, "refused", f"the node {node!r} has no label.")
    if accepted:
        at, found = await service.rankings.audited()
        mine = [doubt for doubt in found["doubts"] if doubt["node"] == node]
        doubts = await asyncio.to_thread(_open_doubts, service, mine, at)
        if not doubts:
            raise ProblemError(404, "not-found", f"the audit does not list the node {node!r}.")
        if published.several:
            wrong = {doubt["task"] for doubt in doubts if doubt["margin"] > 0}
            label = sorted(set(label) ^ wrong)
        else:
            label = doubts[0]["suggested"]
    source = ACCEPTED if accepted else KEPT
    write = Label(
        node=node, label=tuple(label) if isinstance(label, list) else label, source=source
    )
    # The decision is about the published label: a newer one must not be overwritten.
    if if_match not in (None, version):
        text = f"the label of {node!r} that you saw is not the published one. Read it again."
        raise ConflictError(text, {node: version})
    return written(await service.write(actor, [write], key=key, if_match={node: version}))


@router.post("/what-if", **documented(WhatIfAnswer))
async def what_if(service: TheService, caller: Caller, given: WhatIfRequest) -> Response:
    """Return the effect of labels that are not stored."""
    _check_what_if(service.ready(), given)
    labels = {n: list(la) if isinstance(la, tuple) else la for n, la in given.labels.items()}
    found = await service.engine.ask("what-if", timeout=ANSWER, labels=labels, nodes=given.nodes)
    before = service.described(found["ids"], found, "before_")
    after = service.described(found["ids"], found)
    for one in after:
        if one["id"] in labels:
            one["label"] = labels[one["id"]]
    rows = zip(found.arrays["before_probabilities"], found.arrays["probabilities"], strict=True)
    sizes = [float(abs(a - b).max()) for a, b in rows]
    effects = [
        {"before": b, "after": a, "size": round(size, 7)}
        for b, a, size in zip(before, after, sizes, strict=True)
    ]
    counts = {"changed": found["changed"], "moved": found["moved"]}
    stamp = service.stamp(found["version"], found["generation"])
    return answer({**stamp, **counts, "effects": effects})


def _check_what_if(published: Published, given: WhatIfRequest) -> None:
    """Refuse labels that are not valid and nodes that do not exist."""
    for node, label in given.labels.items():
        if label is None:
            continue
        names = [label] if isinstance(label, str) else label
        unknown = [name for name in names if name not in published.classes]
        if unknown or published.several == isinstance(label, str):
            form = "a list of class names" if published.several else "one class name"
            what = f"{unknown[0]!r} is not a class" if unknown else f"it must be {form}"
            raise ProblemError(422, "invalid", f"the label of {node!r}: {what}.")
    for node in given.nodes:
        if node not in published.numbers:
            raise UnknownNodeError(node)


@router.get("/nodes/{id}/explanation.json", **documented(ExplanationAnswer))
async def explain(
    service: TheService,
    caller: Caller,
    node: NodeId,
    about: About = None,
    reached: Reached = None,
) -> Response:
    """Return the neighbors and labels behind a prediction."""
    found = await service.engine.ask("explain", timeout=ANSWER, node=node, about=about)
    stamp = service.stamp(found["version"], found["generation"])
    return answer({**stamp, "explanation": found["explanation"]})


@router.get("/nodes/{id}/explanation.svg", responses=ERRORS)
async def draw(
    service: TheService,
    caller: Caller,
    node: NodeId,
    about: About = None,
    reached: Reached = None,
    layout: Literal["wide", "narrow"] = "wide",
) -> Response:
    """Return the explanation as a picture; 204 if the node has no edges."""
    found = await service.engine.ask(
        "picture", timeout=ANSWER, node=node, about=about, layout=layout
    )
    stamp = service.stamp(found["version"], found["generation"])
    headers = {f"Unimp-{name.title()}": str(value) for name, value in stamp.items()}
    if not found["svg"]:
        return Response(status_code=204, headers=headers)
    # Opened on its own, the picture may use its own styles, but nothing else.
    headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    return Response(found["svg"], 200, headers, "image/svg+xml")


@router.get("/accuracy", **documented(AccuracyAnswer))
async def accuracy(
    service: TheService,
    caller: Caller,
    last: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    """Return how often the model was right just before each label arrived."""
    found = await asyncio.to_thread(live_accuracy, service.store.reader, last=last)
    plain = _without_nan(dataclasses.asdict(found))
    version = plain.pop("version")
    return stamped(service, version, **plain)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
