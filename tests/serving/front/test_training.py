"""Training on new labels, and choosing the model that answers."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import Server, serving

from unimp.config.run_files import CHECKPOINT, GATE, GENERATIONS, JOB
from unimp.serving import schemas
from unimp.serving.front import generations, service


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


def test_a_new_model_can_be_activated_and_rolled_back(copied: Callable[[], Path]) -> None:
    folder = copied()
    with serving(folder) as server:
        labels = [{"node": f"n{n}", "label": "red"} for n in range(10, 40, 2)]
        server.client.post("/v1/labels", json={"labels": labels})
        body = {"nodes": [{"id": "new", "values": {"size": 1.0, "kind": "a"}}]}
        server.client.post("/v1/nodes", json=body)
        first = node(server)
        job = server.client.post("/v1/retrain", json={"epochs": 5}).json()
        assert server.client.post("/v1/retrain").status_code == 503
        done = finished(server, job["id"])
        assert done.state == "ready", done.detail
        assert done.against == 0
        assert {one.name: one.count for one in done.gate}["live labels"] == 7
        model = schemas.ModelAnswer.model_validate_json(server.client.get("/v1/model").content)
        assert [one.generation for one in model.generations] == [0, 1]
        assert model.generation == 0
        server.client.put("/v1/nodes/n50/label", json={"label": "blue"})
        assert server.client.post("/v1/generations/1/activate").status_code == 200
        second = node(server)
        assert second.generation == 1
        assert second.node.classes != first.node.classes
        assert server.client.get("/v1/nodes/new").status_code == 200
        assert server.client.post("/v1/generations/0/activate").status_code == 200
        assert node(server).generation == 0
        server.client.post("/v1/generations/1/activate")
        assert server.client.post("/v1/generations/7/activate").status_code == 404
    with serving(folder) as server:
        again = node(server)
        assert again.generation == 1
        assert again.node.classes == second.node.classes


def some_labels(server: Server) -> None:
    labels = [{"node": f"n{n}", "label": "red"} for n in range(0, 20, 2)]
    assert server.client.post("/v1/labels", json={"labels": labels}).status_code == 200


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"there is no {path}")


def test_a_training_that_was_killed_resumes_also_after_a_restart(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    first = folder / GENERATIONS / "1"
    with serving(folder) as server:
        some_labels(server)
        server.client.post("/v1/retrain", json={"epochs": 3_000, "activate": True})
        wait_for(first / CHECKPOINT)
        process = server.service.jobs._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)  # the trainer alone
        while server.service.jobs._process is process:
            time.sleep(0.02)
        assert server.client.get("/v1/jobs/1").json()["state"] == "training"
        server.client.put("/v1/nodes/n50/label", json={"label": "blue"})  # is not learned
    stored = json.loads((folder / GENERATIONS / f"1.{JOB}").read_text())
    assert stored["state"] == "training"
    epochs = read_epochs(first)
    # A shorter rest: the settings of the training are stored with its job.
    with serving(folder) as server:
        job = finished(server, "1")
        assert job.state in ("active", "refused"), job.detail
        assert job.version == 10
        assert (server.service.generation == 1) == (job.state == "active")
    lines = (first / "history.jsonl").read_text().splitlines()
    assert len(lines) == 3_000 > epochs > 0
    assert not (first / CHECKPOINT).exists()


def read_epochs(folder: Path) -> int:
    """The epochs that an interrupted training has stored."""
    return len((folder / "history.jsonl").read_text().splitlines())


def test_a_trainer_that_is_killed_again_and_again_is_stopped_and_can_continue(
    copied: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(copied()) as server:
        some_labels(server)
        code = [*([-9] * generations.MOST_STARTS), 1]

        async def killed(self: generations.Jobs, job: generations.Job) -> tuple[int, str]:
            return code.pop(0), "no memory"

        monkeypatch.setattr(generations.Jobs, "_run_trainer", killed)
        job = server.client.post("/v1/retrain").json()
        assert finished(server, job["id"]).state == "stopped"
        assert server.client.post("/v1/jobs/1/resume").status_code == 200
        failed = finished(server, job["id"])
        assert (failed.state, failed.detail) == ("failed", "no memory")
        monkeypatch.undo()
        monkeypatch.setattr(service, "LOADING", 60)
        server.service.jobs.get("1").epochs = 3
        server.client.post("/v1/jobs/1/resume")
        assert finished(server, "1").state in ("ready", "refused")
        assert server.client.post("/v1/jobs/1/resume").status_code == 422
        assert server.client.post("/v1/jobs/9/resume").status_code == 404


def test_a_refused_model_can_only_be_activated_by_an_override_that_the_log_records(
    copied: Callable[[], Path],
) -> None:
    folder = copied()
    with serving(folder) as server:
        some_labels(server)
        server.client.post("/v1/retrain", json={"epochs": 3})
        finished(server, "1")
        path = folder / GENERATIONS / "1" / GATE
        result = json.loads(path.read_text())
        result["accepted"] = False
        result["checks"][1] |= {"passed": False, "detail": "much worse"}
        path.write_text(json.dumps(result))
        refused = server.client.post("/v1/generations/1/activate")
        assert refused.status_code == 422
        assert "much worse" in refused.json()["detail"]
        assert node(server).generation == 0
        done = server.client.post("/v1/generations/1/activate", json={"override": True})
        assert done.status_code == 200
        assert node(server).generation == 1
        event = server.client.get("/v1/log", params={"kind": "model"}).json()["events"][0]
        assert (event["generation"], event["override"]) == (1, True)
        server.client.post("/v1/generations/0/activate", json={"override": True})
        event = server.client.get("/v1/log", params={"kind": "model"}).json()["events"][0]
        assert (event["generation"], event["override"]) == (0, False)  # nothing was refused


def test_the_model_before_stays_loaded_for_a_rollback(
    copied: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ROLLBACK", 2.0)
    with serving(copied()) as server:
        some_labels(server)
        server.client.post("/v1/retrain", json={"epochs": 3})
        assert finished(server, "1").state == "ready"

        def loaded() -> list[bool]:
            found = server.client.get("/v1/model").json()["generations"]
            return [one["loaded"] for one in found]

        for generation in (1, 0, 1, 0, 1):  # each activation starts the time again
            server.client.post(f"/v1/generations/{generation}/activate")
            time.sleep(0.7)
            assert loaded() == [True, True]
        for _ in range(100):
            if loaded() == [False, True]:
                break
            time.sleep(0.1)
        assert loaded() == [False, True]
        started = time.monotonic()
        assert server.client.post("/v1/generations/0/activate").status_code == 200  # loads it again
        assert time.monotonic() - started > 0.1
        assert node(server).generation == 0
