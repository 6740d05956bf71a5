"""Training on new labels, and choosing the model that answers."""

import asyncio
import json
import os
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import Server, serving

from unimp.config.run_files import CHECKPOINT, GATE, GENERATIONS, JOB, TASK, WEIGHTS
from unimp.serving import schemas
from unimp.serving.front import generations, guard, models
from unimp.serving.front.service import Service

PROOF = runpy.run_path(str(Path(__file__).parents[3] / "proofs" / "serve_swap.py"))


def finished(server: Server, id: str) -> schemas.Job:
    """Wait for the end of a training."""
    for _ in range(1200):
        job = schemas.Job.model_validate_json(server.client.get(f"/v1/jobs/{id}").content)
        if job.state not in ("training", "loading"):
            return job
        time.sleep(0.1)
    raise AssertionError("the training did not end")


def node(server: Server) -> schemas.NodeAnswer:
    head = server.service.store.reader.head()
    answer = server.client.get("/v1/nodes/n2", params={"min_version": head})
    return schemas.NodeAnswer.model_validate_json(answer.content)


def activate(server: Server, generation: int, **body: bool) -> int:
    """The status of an activation, by default also of a model that the gate refused."""
    path = f"/v1/generations/{generation}/activate"
    return server.client.post(path, json=body or {"override": True}).status_code


def give_labels(server: Server) -> None:
    labels = [{"node": f"n{n}", "label": "red"} for n in range(10, 40, 2)]
    assert server.client.post("/v1/labels", json={"labels": labels}).status_code == 200


@pytest.fixture(scope="module")
def two(copied: Callable[[], Path]) -> Iterator[Server]:
    """A server with two generations; each test starts with generation 0."""
    with serving(copied()) as server:
        give_labels(server)
        body = {"nodes": [{"id": "new", "values": {"size": 1.0, "kind": "a"}}]}
        server.client.post("/v1/nodes", json=body)
        job = server.client.post("/v1/retrain", json={"epochs": 5}).json()
        assert server.client.post("/v1/retrain").status_code == 503
        done = finished(server, job["id"])
        assert done.state in ("ready", "refused"), done.detail
        assert done.against == 0
        assert {one.name: one.count for one in done.gate}["live labels"] == 7
        assert activate(server, 1) == 200
        yield server


@pytest.fixture(autouse=True)
def start_with_the_run(request: pytest.FixtureRequest) -> None:
    if "two" in request.fixturenames:
        server: Server = request.getfixturevalue("two")
        assert activate(server, 0) == 200


def test_a_new_model_can_be_activated_and_rolled_back(two: Server) -> None:
    first = node(two)
    model = schemas.ModelAnswer.model_validate_json(two.client.get("/v1/model").content)
    assert [one.generation for one in model.generations] == [0, 1]
    assert model.generation == 0
    two.client.put("/v1/nodes/n50/label", json={"label": "blue"})
    assert activate(two, 1) == 200
    second = node(two)
    assert second.generation == 1
    assert second.node.classes != first.node.classes
    assert two.client.get("/v1/nodes/new").status_code == 200
    assert activate(two, 0) == 200
    assert node(two).generation == 0
    assert activate(two, 7) == 404


def test_changes_since_a_version_before_a_swap_are_all_nodes(two: Server) -> None:
    since = node(two).version
    assert not two.client.get("/v1/changes", params={"since": since}).json()["reset"]
    activate(two, 1)
    assert two.client.get("/v1/changes", params={"since": since}).json()["reset"]


def test_an_answer_that_began_before_a_swap_states_the_model_that_gave_it(two: Server) -> None:
    before = two.client.get("/v1/nodes/n4").json()
    activate(two, 1)
    other = two.client.get("/v1/nodes/n4").json()
    activate(two, 0)
    assert before["node"]["classes"] != other["node"]["classes"]
    pid = two.service.engine.pid
    assert pid is not None
    found = []

    def read() -> None:
        params = {"min_version": version}
        found.append(two.client.get("/v1/nodes/n4", params=params).json())

    two.client.get("/v1/model", params={"min_version": two.service.store.reader.head()})
    os.kill(pid, signal.SIGSTOP)
    try:
        # A note changes no prediction, but the next exact answer has to ask the engine.
        version = two.client.post("/v1/nodes/n5/notes", json={"text": "x"}).json()["version"]
        thread = threading.Thread(target=read)
        thread.start()
        while not two.service.engine.waiting:
            time.sleep(0.01)
        assert activate(two, 1) == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join()
    assert two.service.generation == 1
    assert found[0]["generation"] == 0
    assert found[0]["node"]["classes"] == before["node"]["classes"]


def test_models_are_swapped_under_load(two: Server) -> None:
    """The short form of proofs/serve_swap.py."""
    found = PROOF["swap"](
        two.address,
        two.service.folder,
        generations=[0, 1],
        swaps=6,
        pause=0.15,
        readers=3,
        writers=1,
    )
    assert found["failures"] == []
    assert (found["failed"], found["stale"], found["mixed"]) == (0, 0, 0), found
    assert found["generations"] == [0, 1]
    assert found["answers_compared"] == found["answers"] > 0


def test_a_refused_model_is_activated_only_by_an_override_that_the_log_records(
    two: Server,
) -> None:
    path = two.service.folder / GENERATIONS / "1" / GATE
    before = path.read_text()
    result = json.loads(before)
    result["accepted"] = False
    result["checks"][1] |= {"passed": False, "detail": "much worse"}
    path.write_text(json.dumps(result))
    try:
        refused = two.client.post("/v1/generations/1/activate")
        assert refused.status_code == 422
        assert "much worse" in refused.json()["detail"]
        assert node(two).generation == 0
        assert activate(two, 1, override=True) == 200
        assert node(two).generation == 1
        event = two.client.get("/v1/log", params={"kind": "model"}).json()["events"][0]
        assert (event["generation"], event["override"]) == (1, True)
        activate(two, 0, override=True)
        event = two.client.get("/v1/log", params={"kind": "model"}).json()["events"][0]
        assert (event["generation"], event["override"]) == (0, False)  # nothing was refused
    finally:
        path.write_text(before)


def test_a_trainer_that_is_killed_again_and_again_is_stopped_and_can_continue(
    two: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [*([-9] * generations.MOST_STARTS), 1]

    async def killed(self: generations.Jobs, job: generations.Job) -> tuple[int, str]:
        return codes.pop(0), "no memory"

    monkeypatch.setattr(generations.Jobs, "_run_trainer", killed)
    id = two.client.post("/v1/retrain").json()["id"]
    assert finished(two, id).state == "stopped"
    assert two.client.post(f"/v1/jobs/{id}/resume").status_code == 200
    failed = finished(two, id)
    assert (failed.state, failed.detail) == ("failed", "no memory")
    assert two.client.post("/v1/jobs/1/resume").status_code == 422  # it has ended
    assert two.client.post("/v1/jobs/9/resume").status_code == 404


def test_the_model_before_stays_loaded_for_a_rollback(
    two: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "ROLLBACK", 1.5)

    def loaded() -> list[bool]:
        found = two.client.get("/v1/model").json()["generations"]
        return [one["loaded"] for one in found]

    for generation in (1, 0, 1, 0, 1):  # each activation starts the time again
        assert activate(two, generation) == 200
        assert loaded() == [True, True]
        time.sleep(0.6)
    for _ in range(100):
        if loaded() == [False, True]:
            break
        time.sleep(0.1)
    assert loaded() == [False, True]


def wait_for(test: Callable[[], bool]) -> None:
    for _ in range(1200):
        if test():
            return
        time.sleep(0.05)
    raise AssertionError("this takes too long")


@pytest.fixture
def unloaded(two: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, without the engine of generation 1."""
    with monkeypatch.context() as patch:
        patch.setattr(models, "ROLLBACK", 0.0)
        assert activate(two, 1) == 200
        assert activate(two, 0) == 200
        wait_for(lambda: list(two.service.models.loaded) == [0])
    return two


def test_a_model_that_is_not_loaded_in_time_is_unloaded(
    unloaded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(models, "LOADING", 0.2)
        assert activate(unloaded, 1) == 503
    assert list(unloaded.service.models.loaded) == [0]
    assert node(unloaded).generation == 0
    assert activate(unloaded, 1) == 200


def test_an_activation_finishes_also_if_its_request_ends_before(
    unloaded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REQUEST_TIME", 0.2)
    head = unloaded.service.store.reader.head()
    with monkeypatch.context() as patch:
        patch.setattr(guard, "UNLIMITED", ())
        assert activate(unloaded, 1) == 503
        assert activate(unloaded, 1) == 503  # waits for the same activation
    wait_for(lambda: unloaded.service.generation == 1)
    assert unloaded.service.store.reader.head() == head + 1


def test_an_activation_may_take_longer_than_other_requests(
    unloaded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REQUEST_TIME", 0.2)
    assert activate(unloaded, 1) == 200


def test_a_resumed_training_is_compared_with_the_model_that_is_active_then(
    two: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(self: generations.Jobs, job: generations.Job) -> tuple[int, str]:
        return -9, ""

    with monkeypatch.context() as patch:
        patch.setattr(generations.Jobs, "_run_trainer", killed)
        id = two.client.post("/v1/retrain", json={"epochs": 3}).json()["id"]
        assert finished(two, id).against == 0
    assert activate(two, 1) == 200
    assert two.client.post(f"/v1/jobs/{id}/resume").json()["against"] == 1
    assert finished(two, id).against == 1
    stored = two.service.folder / GENERATIONS / id / GATE
    assert json.loads(stored.read_text())["against"] == 1


def test_a_model_that_is_activated_during_a_training_is_what_the_gate_compares_with(
    two: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, active = generations.Jobs._run_trainer, []

    async def trained_meanwhile(self: generations.Jobs, job: generations.Job) -> tuple[int, str]:
        ended = await real(self, job)
        stored = two.service.folder / GENERATIONS / job.id / GATE
        result = json.loads(stored.read_text()) | {"accepted": True}
        stored.write_text(json.dumps(result))
        active.append(result["against"])
        await two.service.models.activate("local", 1, override=True)
        return ended

    monkeypatch.setattr(generations.Jobs, "_run_trainer", trained_meanwhile)
    body = {"epochs": 3, "activate": True}
    id = two.client.post("/v1/retrain", json=body).json()["id"]
    job = finished(two, id)
    assert (job.state, job.against, active) == ("active", 1, [0, 1])
    assert node(two).generation == int(id)


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "slow"])
def test_a_training_is_stopped_if_the_active_model_cannot_be_loaded(
    damaged: bool, copied: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied()
    job = generations.Job("1", 1, 0, 0, "local")
    (folder / GENERATIONS).mkdir()
    generations.Jobs(folder, lambda job: None).change(job, "training")
    if damaged:
        (folder / WEIGHTS).write_bytes(b"damaged")
    else:
        monkeypatch.setattr(models, "LOADING", 0.0)

    async def start() -> generations.Job:
        service = Service(folder)
        await service.start()
        try:
            while service.models.jobs.running is not None:
                await asyncio.sleep(0.05)
            return service.models.jobs.resume("1")
        finally:
            await service.close()

    found = asyncio.run(asyncio.wait_for(start(), 60))
    assert found.state == "stopped"
    assert "/v1/jobs/1/resume" in found.detail
    assert (WEIGHTS if damaged else "not ready within") in found.detail


def test_a_training_that_was_killed_resumes_also_after_a_restart(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    out = folder / GENERATIONS / "1"
    with serving(folder) as server:
        give_labels(server)
        server.client.post("/v1/retrain", json={"epochs": 400, "activate": True})
        jobs = server.service.models.jobs
        wait_for((out / CHECKPOINT).exists)
        process, written = jobs._process, (out / TASK).stat().st_mtime_ns
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)  # the trainer alone
        wait_for(lambda: jobs._process is not process)
        assert server.client.get("/v1/jobs/1").json()["state"] == "training"
        server.client.put("/v1/nodes/n50/label", json={"label": "blue"})  # is not learned
    stored = json.loads((folder / GENERATIONS / f"1.{JOB}").read_text())
    assert stored["state"] == "training"
    assert (out / CHECKPOINT).exists()
    with serving(folder) as server:
        job = finished(server, "1")
        assert job.state in ("active", "refused"), job.detail
        assert job.version == 15
        if job.state == "refused":
            activate(server, 1)
    # The trainer resumed: a new start would have written the task again.
    assert (out / TASK).stat().st_mtime_ns == written
    assert len((out / "history.jsonl").read_text().splitlines()) == 400
    again = Service(folder)
    assert again.generation == 1
    assert again.models.jobs.get("1").plain()["gate"] == job.model_dump()["gate"]
    asyncio.run(again.close())
