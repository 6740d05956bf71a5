"""The Open Inference Protocol v2: the predictions for programs that speak it.

The model has one input, `id` (BYTES, the ids of nodes), and three outputs: `probabilities` (FP32,
one row per id), `prediction` (BYTES) and `observed` (BOOL).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from unimp import __version__
from unimp.serving.events import Id
from unimp.serving.front.answers import ERRORS, Caller, MinVersion, TheService, answer, decoded
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.service import PULL, Service
from unimp.serving.schemas import MOST_IDS

router = APIRouter(prefix="/v2", tags=["open inference protocol"], responses=ERRORS)


class Input(BaseModel):
    """The ids of nodes."""

    name: Literal["id"]
    shape: list[int]
    datatype: Literal["BYTES"]
    data: Annotated[list[Id], Field(max_length=MOST_IDS)]


class InferRequest(BaseModel):
    """A request for predictions."""

    id: str | None = None
    inputs: Annotated[list[Input], Field(min_length=1, max_length=1)]


@router.get("")
async def server() -> Response:
    """Describe the server."""
    return answer({"name": "unimp", "version": __version__, "extensions": []})


@router.get("/health/live")
async def live() -> Response:
    """Answer as long as the process runs."""
    return answer({"live": True})


@router.get("/health/ready")
async def ready(service: TheService) -> Response:
    """Answer 200 if predictions are published."""
    is_ready = service.published is not None
    return answer({"ready": is_ready}, status_code=200 if is_ready else 503)


def _named(service: Service, name: str) -> str:
    """The decoded name of the model; raises 404 if it is another one."""
    known: str = service.ready().about["name"]
    if decoded(name) != known:
        raise ProblemError(404, "not-found", f"there is no such model; it is {known!r}.")
    return known


@router.get("/models/{name}")
async def metadata(service: TheService, caller: Caller, name: str) -> Response:
    """Describe the inputs and outputs of the model."""
    name = _named(service, name)
    count = len(service.ready().classes)
    return answer(
        {
            "name": name,
            "versions": [str(service.generation)],
            "platform": "unimp",
            "inputs": [{"name": "id", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [
                {"name": "probabilities", "datatype": "FP32", "shape": [-1, count]},
                {"name": "prediction", "datatype": "BYTES", "shape": [-1]},
                {"name": "observed", "datatype": "BOOL", "shape": [-1]},
            ],
        }
    )


@router.get("/models/{name}/ready")
async def model_ready(service: TheService, caller: Caller, name: str) -> Response:
    """Answer 200 if the model answers."""
    name = _named(service, name)
    return answer({"name": name, "ready": True})


@router.post("/models/{name}/infer")
async def infer(
    service: TheService,
    caller: Caller,
    name: str,
    asked: InferRequest,
    min_version: MinVersion = None,
) -> Response:
    """Return the predictions of some nodes."""
    name = _named(service, name)
    ids = asked.inputs[0].data
    if asked.inputs[0].shape != [len(ids)]:
        raise ProblemError(422, "invalid", f"the shape of the input must be [{len(ids)}].")
    must_pull = await service.must_pull(min_version)
    published = service.ready()
    if not must_pull:
        numbers = [service.number(one) for one in ids]
        stamp = service.stamp()
        rows, observed = published.probabilities[numbers], published.observed[numbers]
    else:
        found = await service.engine.ask("pull", timeout=PULL, ids=ids)
        stamp = service.stamp(found["version"], found["generation"])
        rows, observed = found.arrays["probabilities"], found.arrays["observed"]
    predictions: list[Any] = [published.predicted(row) for row in rows]
    texts = [";".join(one) if isinstance(one, list) else one for one in predictions]
    count = len(ids)
    outputs = [
        ("probabilities", "FP32", [count, len(published.classes)], rows.reshape(-1).tolist()),
        ("prediction", "BYTES", [count], texts),
        ("observed", "BOOL", [count], [bool(one) for one in observed]),
    ]
    keys = ("name", "datatype", "shape", "data")
    return answer(
        {
            "model_name": name,
            "model_version": str(stamp["generation"]),
            "id": asked.id or "",
            "parameters": stamp,
            "outputs": [dict(zip(keys, one, strict=True)) for one in outputs],
        }
    )
