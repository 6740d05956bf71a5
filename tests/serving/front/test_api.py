"""The promise of the service, through HTTP."""

import io
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from live_server import Server, serving
from pyarrow import csv, ipc, parquet, table
from small_runs import cold, some_write

from unimp.runs.run import Run
from unimp.serving import schemas
from unimp.serving.events import Predicted, Write


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
            # A node that was just added may not be published yet.
            old, every = (
                draw.sample(names[: trained.task.graph.num_nodes], 5),
                draw.sample(names, 5),
            )
            for url, asked in (("/v1/predict", old), (f"/v1/predict?min_version={head}", every)):
                found = server.client.post(url, json={"ids": asked}).json()
                if found["version"] < head:
                    continue  # the published answer, which states that it is older
                assert found["version"] == head
                for node in found["nodes"]:
                    row = expected[names.index(node["id"])]
                    for one in node["classes"]:
                        c = trained.task.class_names.index(one["class"])  # type: ignore[union-attr]
                        assert one["probability"] == pytest.approx(float(row[c]), abs=1e-5)
        listed = server.client.get("/v1/nodes", params={"min_version": head, "limit": 1000}).json()
        assert listed["total"] == len(names)
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


def test_a_source_is_not_withdrawn_in_part(server: Server) -> None:
    head = server.service.store.reader.head()
    for count in (1, 2):
        answer = server.client.post("/v1/undo", json={"source": "wrong rule", "count": count})
        assert answer.status_code == 422
        assert "only with a version" in answer.json()["detail"]
    assert server.service.store.reader.head() == head


def test_a_write_of_many_labels_is_undone_as_a_whole(server: Server) -> None:
    before = [read(server, name).node.label for name in ("n20", "n22", "n24")]
    labels = [{"node": name, "label": "green"} for name in ("n20", "n22", "n24")]
    stored = server.client.post("/v1/labels", json={"labels": labels}).json()
    too_many = {"version": stored["first"], "count": stored["count"] + 1}
    assert server.client.post("/v1/undo", json=too_many).status_code == 422
    whole = {"version": stored["first"], "count": stored["count"]}
    undone = server.client.post("/v1/undo", json=whole).json()
    assert undone["count"] == 3
    after = [
        read(server, name, min_version=undone["version"]).node.label
        for name in ("n20", "n22", "n24")
    ]
    assert after == before
    assert server.client.post("/v1/undo", json=whole).status_code == 422  # it was undone


def test_a_table_without_the_columns_is_refused_with_its_first_line(server: Server) -> None:
    headers = {"Content-Type": "text/csv"}
    answer = server.client.post("/v1/labels", content="node;label\nn6;red\n", headers=headers)
    assert answer.status_code == 422
    assert "'node;label'" in answer.json()["detail"]


def test_the_queue_offers_free_nodes_and_a_lease_ends_with_the_answer(
    copied: Callable[[], Path],
) -> None:
    # It has a server of its own, because other tests name nodes that the queue could offer.
    with serving(copied()) as server:
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


def test_a_node_whose_label_in_the_run_was_removed_is_suggested(server: Server) -> None:
    def suggested(version: int) -> set[str]:
        params = {"limit": 1000, "min_version": version}
        found = server.client.get("/v1/suggest", params=params).json()["suggestions"]
        return {row["node"] for row in found}

    name = next(f"n{n}" for n in range(1, 60, 2) if read(server, f"n{n}").node.observed)
    assert name not in suggested(server.service.store.reader.head())
    removed = server.client.delete(path(name, "/label")).json()
    assert name in suggested(removed["version"])
    undone = server.client.post("/v1/undo", json={"version": removed["version"]}).json()
    assert name not in suggested(undone["version"])


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
    head = server.service.store.reader.head()
    query = {"state": "unlabeled", "min_version": head}
    free = server.client.get("/v1/nodes", params=query).json()["nodes"]
    # The nodes of odd numbers have labels in the run, which the weights may know.
    name = next(node["id"] for node in free if int(node["id"][1:]) % 2 == 0)
    before = schemas.AccuracyAnswer.model_validate_json(server.client.get("/v1/accuracy").content)
    put(server, name, read(server, name).node.prediction)  # type: ignore[arg-type]
    after = schemas.AccuracyAnswer.model_validate_json(server.client.get("/v1/accuracy").content)
    assert after.all.count == before.all.count + 1
    assert after.all.correct == before.all.correct + 1


def test_the_service_describes_itself(server: Server) -> None:
    model = schemas.ModelAnswer.model_validate_json(server.client.get("/v1/model").content)
    assert set(model.classes) == {"red", "green", "blue"}
    assert [column.name for column in model.features] == ["size", "kind"]
    assert [(c.name, c.kind) for c in model.edge_features] == [("weight", "numeric")]
    kinds = {column.name: column for column in model.features}
    assert kinds["size"].kind == "numeric"
    assert sorted(kinds["kind"].choices) == ["a", "b"]
    assert not model.near
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


def test_a_file_of_labels_is_refused_if_one_of_them_changed_since(server: Server) -> None:
    put(server, "n30", "red")
    export = server.client.get("/v1/export/labels.csv")
    tag = export.headers["etag"]
    file = {"labels": [{"node": f"n{n}", "label": "green"} for n in (30, 32, 34)]}
    put(server, "n36", "blue")  # is not in the file
    first = server.client.post("/v1/labels", json=file, headers={"If-Match": tag})
    assert first.status_code == 200, first.text
    undone = server.client.post("/v1/undo", json={"version": first.json()["first"]}).json()
    head = server.service.store.reader.head()
    again = server.client.post("/v1/labels", json=file, headers={"If-Match": tag})
    assert again.status_code == 412
    assert set(again.json()["versions"]) == {"n30", "n32", "n34"}
    assert server.service.store.reader.head() == head  # nothing was written
    late = {"If-Match": f'"{head}"'}
    assert server.client.post("/v1/labels", json=file, headers=late).status_code == 200
    since = {"If-Match": f'"{undone["version"] - 1}"'}
    body = {"labels": [{"node": "n30", "label": None}, {"node": "n38", "label": "red"}]}
    conflict = server.client.post("/v1/labels", json=body, headers=since)
    assert (conflict.status_code, set(conflict.json()["versions"])) == (412, {"n30"})
    assert server.service.store.reader.head() == head + 3
    future = {"If-Match": '"1000000"'}
    assert server.client.post("/v1/labels", json=body, headers=future).status_code == 412
    key = {"If-Match": tag, "Idempotency-Key": "one-file"}
    assert server.client.post("/v1/labels", json=body, headers=key).status_code == 412
    key["If-Match"] = f'"{server.service.store.reader.head()}"'
    stored = server.client.post("/v1/labels", json=body, headers=key).json()
    repeated = server.client.post("/v1/labels", json=body, headers=key).json()
    assert repeated == {**stored, "repeated": True}  # its own labels are not a conflict


def test_every_problem_of_a_file_is_listed_at_once(server: Server) -> None:
    head = server.service.store.reader.head()
    rows = [("n6", "red"), ("", "red"), ("?", "red"), ("n8", "purple"), ("n10", ""), ("n12", "red")]
    text = "node,label\n" + "".join(f"{node},{label}\n" for node, label in rows)
    body = {"labels": [{"node": node, "label": label} for node, label in rows]}
    body["labels"].append({"node": 5, "label": "red"})  # type: ignore[dict-item]
    csv_answer = server.client.post(
        "/v1/labels", content=text, headers={"Content-Type": "text/csv"}
    )
    answer = server.client.post("/v1/labels", json=body)
    for found, places in ((csv_answer, [1, 2, 3, 4]), (answer, [1, 2, 3, 4, 6])):
        assert found.status_code == 422
        assert [one["place"] for one in found.json()["problems"]] == places
    assert server.service.store.reader.head() == head


@contextmanager
def stopped_engine(server: Server) -> Iterator[None]:
    """Let events wait: the engine is stopped inside the block."""
    head = server.service.store.reader.head()
    server.client.get("/v1/model", params={"min_version": head})
    pid = server.service.engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def predicted(server: Server, version: int) -> Predicted:
    event = server.service.store.reader.event(version)
    assert event is not None
    assert event.predicted is not None
    return event.predicted


def test_the_prediction_before_a_label_never_knows_the_label(server: Server) -> None:
    """Also while the engine is behind: no label that waits changes what is stored."""
    with stopped_engine(server):
        shown = read(server, "n40")
        assert not shown.node.observed
        neighbor = put(server, "n42", "red").version  # it waits
        other = next(c for c in ("red", "green", "blue") if c != shown.node.prediction)
        first = predicted(server, put(server, "n40", other).version)
        assert (first.label, first.informed) == (shown.node.prediction, False)
        assert first.probability == pytest.approx(shown.node.confidence, abs=1e-6)
        assert first.version == shown.version < neighbor
        again = predicted(server, put(server, "n40", other).version)
        assert again.informed  # by the label that waits
        server.client.delete(path("n40", "/label"))
        retracted = predicted(server, put(server, "n40", other).version)
        assert (retracted.label, retracted.informed) == (shown.node.prediction, False)
        repeated = {"labels": [{"node": "n44", "label": other}] * 2}
        both = server.client.post("/v1/labels", json=repeated).json()
        seen = [predicted(server, both[name]).informed for name in ("first", "version")]
        assert seen == [False, True]
    later = read(server, "n40", min_version=server.service.store.reader.head())
    assert later.node.observed
    version = server.client.delete(path("n40", "/label")).json()["version"]
    server.client.get("/v1/model", params={"min_version": version})
    hidden = read(server, "n40", min_version=version)
    fresh = predicted(server, put(server, "n40", other).version)
    assert (fresh.label, fresh.informed) == (hidden.node.prediction, False)
    assert fresh.version == hidden.version


def test_a_prediction_for_a_node_of_the_training_set_is_informed(
    server: Server, trained: Run
) -> None:
    """The weights know its label, also after the label was removed."""
    names, before = trained.task.node_names or (), server.client.get("/v1/accuracy").json()
    for part in (trained.task.split.train, trained.task.split.val):
        name = names[int(part[-1])]
        version = server.client.delete(path(name, "/label")).json()["version"]
        server.client.get("/v1/model", params={"min_version": version})
        assert not read(server, name).node.observed
        assert predicted(server, put(server, name, "red").version).informed
    assert server.client.get("/v1/accuracy").json()["all"] == before["all"]


def test_what_if_is_what_happens(server: Server) -> None:
    names = [f"n{n}" for n in range(60)]
    for node, label in (("n46", "green"), ("n1", None)):
        before = server.client.get("/v1/model").json()["acknowledged"]
        server.client.get("/v1/model", params={"min_version": before})
        body = {"labels": {node: label}, "nodes": names}
        found = server.client.post("/v1/what-if", json=body).json()
        assert [one["before"] for one in found["effects"][:60]] == [
            server.client.get(path(name)).json()["node"] for name in names
        ]
        if label is None:
            version = server.client.delete(path(node, "/label")).json()["version"]
        else:
            version = put(server, node, label).version
        after = server.client.post(
            "/v1/predict", json={"ids": names}, params={"min_version": version}
        ).json()["nodes"]
        turned = 0
        for expected, now in zip(found["effects"], after, strict=False):
            assert expected["after"]["prediction"] == now["prediction"]
            assert expected["after"]["observed"] == now["observed"]
            for one, other in zip(expected["after"]["classes"], now["classes"], strict=True):
                assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
            is_other = now["id"] != node
            turned += is_other and expected["before"]["prediction"] != now["prediction"]
        assert found["changed"] == turned


def test_a_decision_of_the_audit_does_not_overwrite_a_newer_label(server: Server) -> None:
    head = server.service.store.reader.head()
    answer = server.client.get("/v1/audit", params={"limit": 1000, "min_version": head})
    first, second = answer.json()["doubts"][:2]
    with stopped_engine(server):
        for doubt in (first, second):
            put(server, doubt["node"], doubt["suggested"])
        head = server.service.store.reader.head()
        kept = server.client.post(f"/v1/audit/{first['node']}/keep")
        assert (kept.status_code, set(kept.json()["versions"])) == (412, {first["node"]})
        # A page that knows the newer label may not keep the published one either.
        newer = {"If-Match": f'"{head - 1}"'}
        kept = server.client.post(f"/v1/audit/{first['node']}/keep", headers=newer)
        assert kept.status_code == 412
        accepted = server.client.post(f"/v1/audit/{second['node']}/accept")
        assert accepted.status_code == 404  # somebody decided already
        assert server.service.store.reader.head() == head
    open_doubts = server.client.get("/v1/audit", params={"min_version": head}).json()["doubts"]
    wrong = {"If-Match": '"999"'}
    one = open_doubts[0]
    for decision in ("accept", "keep"):
        where = f"/v1/audit/{one['node']}/{decision}"
        assert server.client.post(where, headers=wrong).status_code == 412
    right = {"If-Match": f'"{one["label_version"]}"'}
    done = server.client.post(f"/v1/audit/{one['node']}/keep", headers=right)
    event = server.service.store.reader.event(done.json()["version"])
    assert event is not None
    assert event.source == "audit: kept"


@pytest.mark.parametrize("labels", [("red", None), (None, "red"), ("red", "blue")])
def test_two_decisions_about_one_node_in_a_request_are_refused(
    server: Server, labels: tuple[str | None, str | None]
) -> None:
    head = server.service.store.reader.head()
    rows = [{"node": "n30", "label": label} for label in labels]
    answer = server.client.post("/v1/labels", json={"labels": rows})
    assert answer.status_code == 422
    assert [one["place"] for one in answer.json()["problems"]] == [1]
    assert "n30" in answer.json()["detail"]
    assert server.service.store.reader.head() == head
