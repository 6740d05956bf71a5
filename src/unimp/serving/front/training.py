"""Routes of training: train on new labels, follow it, and choose the model that answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from unimp.serving.front.answers import Caller, TheService, answer, documented, written
from unimp.serving.schemas import ActivateRequest, Job, JobsAnswer, RetrainRequest, Written

router = APIRouter(prefix="/v1", tags=["train"])


@router.post("/retrain", **documented(Job))
async def retrain(
    service: TheService, caller: Caller, given: RetrainRequest | None = None
) -> Response:
    """Train a model on all labels, in the background; the active model answers meanwhile."""
    caller.check("model")
    given = given or RetrainRequest()
    job = service.models.retrain(caller.name, given.epochs, activate=given.activate)
    return answer(job.plain())


@router.get("/jobs", **documented(JobsAnswer))
async def jobs(service: TheService, caller: Caller) -> Response:
    """List all trainings, the newest first."""
    found = [job.plain() for job in reversed(service.models.jobs.all.values())]
    return answer({"jobs": found})


@router.get("/jobs/{id}", **documented(Job))
async def job(
    service: TheService, caller: Caller, id: Annotated[str, Path(max_length=20)]
) -> Response:
    """Return the state of a training."""
    return answer(service.models.jobs.get(id).plain())


@router.post("/jobs/{id}/resume", **documented(Job))
async def resume(
    service: TheService, caller: Caller, id: Annotated[str, Path(max_length=20)]
) -> Response:
    """Continue a training that was stopped or that failed, from its last checkpoint."""
    caller.check("model")
    return answer(service.models.resume(id).plain())


@router.post("/generations/{generation}/activate", **documented(Written))
async def activate(
    service: TheService,
    caller: Caller,
    generation: Annotated[int, Path(ge=0, lt=2**31)],
    given: ActivateRequest | None = None,
) -> Response:
    """Answer with this model from now on; also the way back to an earlier one."""
    caller.check("model")
    override = given is not None and given.override
    return written(await service.models.activate(caller.name, generation, override=override))
