"""The promise of the service, through HTTP."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from live_server import Server, serving
from pyarrow import csv, ipc, parquet, table
from small_runs import cold, some_write

from unimp.runs.run import Run
from unimp.serving import schemas
from unimp.serving.events import Write


def path(node: str, rest: str = "") -> str:
    return f"/v1/nodes/{quote(node, safe='')}{rest}"


def put(server: Server, node: str, label: str, **headers: str) -> schemas.Written:
    answer = server.client.put(path(node, "/label"), json={"label": label}, headers=headers)
    assert answer.status_code == 200, answer.text
    return schemas.Written.model_validate_json(answer.content)


def read(server: Server, node: str, **query: int) -> schemas.NodeAnswer:
    answer = server.client.get(path(node), params=query)
    assert answer.status_code == 200, answer.text
    return schemas.NodeAnswer.model_validate_json(answer.content)


def test_a_label_is_acknowledged_with_its_version_and_can_be_read_at_once(server: Server) -> None:
    before = read(server, "n0")
    written = put(server, "n0", "red")
    assert written.version == before.acknowledged + 1
    after = read(server, "n0", min_version=written.version)
    assert after.version >= written.version
    assert after.acknowledged >= after.version
    assert (after.node.label, after.node.label_version) == ("red", written.version)
    assert after.node.observed
    assert after.node.confidence is None


def test_a_version_that_does_not_exist_yet_is_never_answered(server: Server) -> None:
    for where in (path("n0"), "/v1/nodes", "/v1/model", "/v1/suggest", path("n0", "/details")):
        answer = server.client.get(where, params={"min_version": 10**9})
        assert answer.status_code == 503, where
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
        schemas.Problem.model_validate_json(answer.content)


def test_a_repeated_request_is_stored_once(server: Server) -> None:
    first = put(server, "n2", "red", **{"Idempotency-Key": "one"})
    again = put(server, "n2", "red", **{"Idempotency-Key": "one"})
    assert (again.version, again.repeated) == (first.version, True)
    other = server.client.put(
        path("n2", "/label"), json={"label": "blue"}, headers={"Idempotency-Key": "one"}
    )
    assert other.status_code == 422
    assert other.json()["type"].endswith("key-reused")


def test_somebody_who_was_faster_is_not_overwritten(server: Server) -> None:
    version = put(server, "n4", "red").version
    tag = server.client.get(path("n4"), params={"min_version": version}).headers["etag"]
    assert tag == f'"{version}"'
    later = put(server, "n4", "green", **{"If-Match": tag}).version
    answer = server.client.put(
        path("n4", "/label"), json={"label": "blue"}, headers={"If-Match": tag}
    )
    assert answer.status_code == 412
    assert answer.json()["versions"] == {"n4": later}
    assert server.client.delete(path("n4", "/label"), headers={"If-Match": "x"}).status_code == 412
    assert read(server, "n4", min_version=later).node.label == "green"


def send(server: Server, write: Write) -> None:
    """Send a write through its route."""
    match write.kind:
        case "label":
            answer = server.client.put(path(write.node, "/label"), json={"label": write.label})
        case "retract":
            answer = server.client.delete(path(write.node, "/label"))
        case "undo":
            answer = server.client.post("/v1/undo", json={"version": write.undoes})
        case "node":
            body = {"nodes": [{"id": write.node, "values": write.values}]}
            answer = server.client.post("/v1/nodes", json=body)
        case _:
            edge = {"source": write.node, "target": write.target}
            if write.kind == "edge":
                body = {"edges": [{**edge, "values": write.values}]}
                answer = server.client.post("/v1/edges", json=body)
            else:
                answer = server.client.request("DELETE", "/v1/edges", json={"edges": [edge]})
    assert answer.status_code == 200, answer.text


def test_answers_equal_a_cold_prediction(copied: Callable[[], Path], trained: Run) -> None:
    draw, names = random.Random(7), list(trained.task.node_names or ())
    with serving(copied()) as server:
        for _ in range(6):
            for _ in range(5):
                send(server, some_write(draw, server.service.store.reader, names))
            head = server.service.store.reader.head()
            expected = cold(trained, server.service.store.reader)
            asked = draw.sample(names, 5)
            for url in ("/v1/predict", f"/v1/predict?min_version={head}"):
                found = server.client.post(url, json={"ids": asked}).json()
                if found["version"] < head:
                    continue  # the published answer, which states that it is older
                assert found["version"] == head
                for node in found["nodes"]:
                    row = expected[names.index(node["id"])]
                    for one in node["classes"]:
                        c = trained.task.class_names.index(one["class"])  # type: ignore[union-attr]
                        assert one["probability"] == pytest.approx(float(row[c]), abs=1e-5)
        every = server.client.get("/v1/nodes", params={"min_version": head, "limit": 1000}).json()
        assert every["total"] == len(names)
        arrow = server.client.post(
            "/v1/predict",
            json={"ids": names},
            headers={"Accept": "application/vnd.apache.arrow.stream"},
        )
        columns = ipc.open_stream(arrow.content).read_all().to_pydict()
        classes = trained.task.class_names or ()
        found = torch.tensor([columns[f"p_{name}"] for name in classes]).t()
        assert torch.allclose(found, expected, atol=1e-5)
        assert arrow.headers["unimp-version"] == str(head)


def test_many_labels_are_stored_together_or_not_at_all(server: Server) -> None:
    head = server.service.store.reader.head()
    bad = {"labels": [{"node": "n6", "label": "red"}, {"node": "?", "label": "red"}]}
    bad["labels"].append({"node": "n8", "label": "purple"})
    answer = server.client.post("/v1/labels", json=bad)
    assert answer.status_code == 422
    assert [one["place"] for one in answer.json()["problems"]] == [1, 2]
    assert server.service.store.reader.head() == head
    good = server.client.post(
        "/v1/labels", json={"labels": [{"node": "n6", "label": "red"}], "source": "a rule"}
    )
    assert good.json()["count"] == 1
    rows = table({"node": ["n6", "n8"], "label": ["blue", "blue"]})
    columnar = "application/vnd.apache.parquet"
    for write, kind in ((csv.write_csv, "text/csv"), (parquet.write_table, columnar)):
        file = io.BytesIO()
        write(rows, file)
        answer = server.client.post(
            "/v1/labels", content=file.getvalue(), headers={"Content-Type": kind}
        )
        assert answer.json()["count"] == 2, answer.text
    for body, kind in ((b"a,b\n1,2", "text/csv"), (b"PAR1", columnar)):
        answer = server.client.post("/v1/labels", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 422, answer.text


def test_a_source_can_be_withdrawn(server: Server) -> None:
    body = {"labels": [{"node": "n10", "label": "red"}], "source": "wrong rule"}
    server.client.post("/v1/labels", json=body)
    written = server.client.post("/v1/undo", json={"source": "wrong rule"}).json()
    assert read(server, "n10", min_version=written["version"]).node.label is None


def test_the_queue_offers_free_nodes_and_a_lease_ends_with_the_answer(server: Server) -> None:
    items = [
        schemas.ItemAnswer.model_validate_json(
            server.client.post("/v1/queue/next", json={"ranking": ranking}).content
        ).item
        for ranking in ("suggested", "doubtful", "random")
    ]
    names = [item.node.id for item in items if item is not None]
    assert len(set(names)) == 3
    mine = schemas.ItemsAnswer.model_validate_json(server.client.get("/v1/queue/mine").content)
    assert {item.node.id for item in mine.items} == set(names)
    put(server, names[0], "red")
    server.client.post(path(names[1], "/skip"))
    server.client.delete(f"/v1/queue/{names[2]}")
    assert not server.client.get("/v1/queue/mine").json()["items"]


def test_labels_that_nobody_stores_show_their_effect(server: Server) -> None:
    head = server.service.store.reader.head()
    body = {"labels": {"n12": "red"}, "nodes": ["n12", "n14"]}
    answer = server.client.post("/v1/what-if", json=body)
    found = schemas.WhatIfAnswer.model_validate_json(answer.content)
    assert [one.after.id for one in found.effects[:2]] == ["n12", "n14"]
    assert found.effects[0].after.prediction == "red"
    assert server.service.store.reader.head() == head
    hidden = server.client.post("/v1/what-if", json={"labels": {"n1": None}, "nodes": ["n1"]})
    assert hidden.json()["effects"][0]["before"]["observed"]
    assert not hidden.json()["effects"][0]["after"]["observed"]
    wrong = server.client.post("/v1/what-if", json={"labels": {"n12": "purple"}})
    assert wrong.status_code == 422


def test_doubtful_labels_can_be_accepted_and_kept(server: Server) -> None:
    head = server.service.store.reader.head()
    answer = server.client.get("/v1/audit", params={"limit": 1000, "min_version": head})
    found = schemas.AuditAnswer.model_validate_json(answer.content)
    assert found.total == len(found.doubts) > 2
    assert found.doubts[0].margin >= found.doubts[-1].margin
    first, second = found.doubts[:2]
    accepted = server.client.post(f"/v1/audit/{first.node}/accept").json()
    kept = server.client.post(f"/v1/audit/{second.node}/keep").json()
    assert kept["version"] == accepted["version"] + 1
    assert read(server, first.node, min_version=kept["version"]).node.label == first.suggested
    assert read(server, second.node, min_version=kept["version"]).node.label == second.given
    later = server.client.get("/v1/audit", params={"min_version": kept["version"], "limit": 1000})
    assert second.node not in {one["node"] for one in later.json()["doubts"]}


def test_a_prediction_is_explained(server: Server) -> None:
    found = server.client.get(path("n12", "/explanation.json"), params={"about": "red"})
    explanation = schemas.ExplanationAnswer.model_validate_json(found.content).explanation
    assert (explanation["node"], explanation["class"]) == ("n12", "red")
    picture = server.client.get(path("n12", "/explanation.svg"))
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "script-src" not in picture.headers["content-security-policy"]
    details = server.client.get(path("n12", "/details"))
    schemas.DetailsAnswer.model_validate_json(details.content)
    assert server.client.get(path("n12", "/explanation.json?about=x")).status_code == 422


def test_changes_can_be_followed_from_a_version(server: Server) -> None:
    since = read(server, "n16", min_version=server.service.store.reader.head()).version
    version = put(server, "n16", "blue").version
    found = server.client.get("/v1/changes", params={"since": since, "min_version": version})
    changed = schemas.ChangesAnswer.model_validate_json(found.content)
    assert not changed.reset
    assert "n16" in {node.id for node in changed.nodes}
    names, cursor = [], ""
    while True:
        one = server.client.get(
            "/v1/changes", params={"since": since, "limit": 1, "cursor": cursor}
        ).json()
        names += [node["id"] for node in one["nodes"]]
        if (cursor := one["next"]) is None:
            break
    assert names == [node.id for node in changed.nodes]
    assert server.client.get("/v1/changes", params={"since": version}).json()["nodes"] == []


def events_of(server: Server, count: int, **headers: str) -> list[tuple[str, dict[str, object]]]:
    """The first server-sent events."""
    found = []
    with server.client.stream("GET", "/v1/events", headers=headers) as stream:
        kind = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))
                if len(found) == count:
                    return found
                put(server, "n18", random.choice(["red", "green", "blue"]))
    raise AssertionError("the stream has ended")


def test_events_are_sent_and_resumed(server: Server) -> None:
    found = events_of(server, 3)
    assert {kind for kind, _ in found} <= {"published", "stored"}
    since = found[0][1]["version"]
    last = put(server, "n20", "green").version
    read(server, "n20", min_version=last)
    server.client.get("/v1/model", params={"min_version": last})
    (kind, data), *_ = events_of(server, 1, **{"Last-Event-ID": str(since)})
    assert kind == "published"
    assert {"n18", "n20"} <= set(data["nodes"])  # type: ignore[call-overload]


def test_the_log_can_be_read_and_exported(server: Server) -> None:
    put(server, "n22", "red")
    page = server.client.get("/v1/log", params={"limit": 2})
    log = schemas.LogAnswer.model_validate_json(page.content)
    assert (log.events[0].node, log.events[0].label, log.events[0].kind) == ("n22", "red", "label")
    assert log.events[0].predicted is not None
    assert log.next == log.events[-1].version
    for name in ("labels", "predictions", "log"):
        for form in ("csv", "parquet", "jsonl"):
            file = server.client.get(f"/v1/export/{name}.{form}")
            assert file.status_code == 200, file.text
            assert int(file.headers["unimp-version"]) > 0
    rows = csv.read_csv(io.BytesIO(server.client.get("/v1/export/labels.csv").content))
    assert "n22" in rows["node"].to_pylist()


def test_accuracy_counts_labels_that_were_predicted_first(server: Server) -> None:
    before = schemas.AccuracyAnswer.model_validate_json(server.client.get("/v1/accuracy").content)
    put(server, "n24", read(server, "n24").node.prediction)  # type: ignore[arg-type]
    after = schemas.AccuracyAnswer.model_validate_json(server.client.get("/v1/accuracy").content)
    assert after.all.count == before.all.count + 1
    assert after.all.correct == before.all.correct + 1


def test_the_service_describes_itself(server: Server) -> None:
    model = schemas.ModelAnswer.model_validate_json(server.client.get("/v1/model").content)
    assert set(model.classes) == {"red", "green", "blue"}
    assert model.features == ["size", "kind"]
    assert model.edge_features == ["weight"]
    routes = server.client.get("/openapi.json").json()["paths"]
    assert {"/v1/labels", "/v1/nodes/{id}/label", "/v1/audit/{id}/keep"} <= set(routes)
    docs = server.client.get("/docs")
    assert "http" not in docs.text.replace("http-equiv", "")
    assert "unimp_version_acknowledged" in server.client.get("/metrics").text
    assert server.client.get("/healthz").status_code == 200
    me = schemas.Me.model_validate_json(server.client.get("/v1/me").content)
    assert (me.name, me.role, me.local) == ("local", "admin", True)


def test_other_programs_can_use_the_open_inference_protocol(server: Server) -> None:
    name = server.client.get("/v1/model").json()["name"]
    assert server.client.get("/v2/health/ready").status_code == 200
    about = server.client.get(f"/v2/models/{name}").json()
    assert about["inputs"][0]["name"] == "id"
    asked = {"name": "id", "shape": [2], "datatype": "BYTES", "data": ["n1", "n0"]}
    found = server.client.post(f"/v2/models/{name}/infer", json={"inputs": [asked]}).json()
    shape = found["outputs"][0]["shape"]
    assert shape == [2, 3]
    assert sum(found["outputs"][0]["data"]) == pytest.approx(2.0, abs=1e-5)
    assert server.client.get("/v2/models/other").status_code == 404
