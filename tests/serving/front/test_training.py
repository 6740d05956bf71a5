"""Training on new labels, and choosing the model that answers."""

import time
from collections.abc import Callable
from pathlib import Path

from live_server import Server, serving

from unimp.serving import schemas


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
        assert done.gate
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
