"""Many requests at the same time, and many labels in one request."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from live_server import Server, serving
from small_runs import COLORS, table_run


def test_people_who_ask_at_the_same_time_get_different_nodes(server: Server) -> None:
    def ask(_: int) -> str:
        answer = server.client.post("/v1/queue/next")
        return str(answer.json()["item"]["node"]["id"])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(16)))
    assert len(set(found)) == 16


def test_labels_that_arrive_together_are_all_published(server: Server) -> None:
    def label(number: int) -> int:
        answer = server.client.put(f"/v1/nodes/n{number}/label", json={"label": "red"})
        return int(answer.json()["version"])

    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(label, range(20)))
    assert len(set(versions)) == 20
    found = server.client.get("/v1/changes", params={"since": 0, "min_version": max(versions)})
    assert found.json()["version"] >= max(versions)
    labels = {node["id"]: node["label"] for node in found.json()["nodes"]}
    assert all(labels[f"n{number}"] == "red" for number in range(20))


def test_a_large_request_is_stored_as_a_whole(server: Server) -> None:
    rows = "".join(f"n{k % 60},{COLORS[k % 3]}\n" for k in range(1_200))
    answer = server.client.post(
        "/v1/labels", content="node,label\n" + rows, headers={"Content-Type": "text/csv"}
    ).json()
    assert answer["count"] == 1_200
    found = server.client.post(
        "/v1/predict",
        params={"min_version": answer["version"]},
        json={"ids": ["n0", "n1", "n59"]},
    ).json()
    assert [node["label"] for node in found["nodes"]] == list(COLORS)


def test_all_nodes_may_have_the_same_label(copied: Callable[[], Path]) -> None:
    with serving(copied()) as server:
        rows = "".join(f"n{k},red\n" for k in range(60))
        version = server.client.post(
            "/v1/labels", content="node,label\n" + rows, headers={"Content-Type": "text/csv"}
        ).json()["version"]
        at = {"min_version": version}
        assert server.client.get("/v1/suggest", params=at).json()["suggestions"] == []
        assert server.client.post("/v1/queue/next").json()["item"] is None
        found = server.client.get("/v1/nodes/n0/explanation.json", params=at).json()
        assert found["explanation"]["observed"] == "red"
        audit = server.client.get("/v1/audit", params=at).json()
        assert audit["total"] == 60
        assert {doubt["given"] for doubt in audit["doubts"]} == {"red"}


def test_labels_are_stored_and_published_during_an_audit(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        audit = pool.submit(server.client.get, "/v1/audit")
        version = server.client.put("/v1/nodes/n0/label", json={"label": "blue"}).json()["version"]
        found = server.client.get("/v1/nodes", params={"q": "n0", "min_version": version}).json()
        assert found["version"] >= version
        # The audit states its own version, which may be that before the label.
        assert audit.result().status_code == 200
        assert audit.result().json()["version"] >= version - 1


def test_a_model_that_computes_everything_answers_at_a_version_after_its_next_push(
    tmp_path: Path,
) -> None:
    run = table_run(tmp_path, **{"model.name": "label-propagation"})
    assert run.folder is not None
    with serving(run.folder) as server:
        published = server.service.published
        assert published is not None
        assert not published.pulls

        def label(number: int) -> tuple[int, dict[str, Any]]:
            path = f"/v1/nodes/n{number}"
            version = server.client.put(f"{path}/label", json={"label": "red"}).json()["version"]
            return version, server.client.get(path, params={"min_version": version}).json()

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(label, range(8)))
        for version, answer in answers:
            assert answer["version"] >= version
            assert answer["node"]["label"] == "red"
        assert server.service.counts["commits"] <= len(answers)
