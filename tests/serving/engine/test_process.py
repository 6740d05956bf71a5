"""The loop of the engine: what is answered during a push, and what is published."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small_runs import table_run

from unimp.runs.run import Run
from unimp.serving.engine import process
from unimp.serving.engine.process import Process
from unimp.serving.events import Label, NewNode
from unimp.serving.store import Store
from unimp.serving.wire import Message, receive


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("tables"))


class Engine:
    """A process without its pipes: messages are given one by one."""

    def __init__(self, run: Run, store: Store) -> None:
        self.store, self._out = store, io.BytesIO()
        self.process = Process(run, run.task.split, store.reader, self._out)
        self.process._hello()
        self.sent()

    def label(self, node: str, label: str = "red") -> int:
        return self.store.write("admin", Label(node=node, label=label)).version

    def give(self, **values: object) -> None:
        self.process._inbox.put(Message(values))

    def sent(self) -> list[Message]:
        """The messages since the last call."""
        self._out.seek(0)
        found = []
        while (message := receive(self._out)) is not None:
            found.append(message)
        self._out.seek(0)
        self._out.truncate()
        return found


@contextmanager
def engine(run: Run, folder: Path) -> Iterator[Engine]:
    with Store(folder) as store:
        store.people.add("admin", "admin")
        yield Engine(run, store)


def test_a_pull_during_a_push_is_answered_before_it_and_at_the_newest_version(
    run: Run, tmp_path: Path
) -> None:
    with engine(run, tmp_path) as made:
        first = made.label("n0")
        second = 0
        between = made.process._between

        def label_meanwhile() -> None:
            nonlocal second
            if not second:
                second = made.label("n2", "blue")
                made.give(kind="stored", version=second)
                made.give(kind="details", request=1, node="n0")
                made.give(kind="pull", request=2, ids=["n2", "n4"])
            between()

        made.process._between = label_meanwhile  # type: ignore[method-assign]
        made.process._publish()
        pulled, published = made.sent()
        assert pulled["request"] == 2
        assert pulled["version"] == second
        assert pulled["labels"][0] == ["blue", second]
        # What is published belongs to its version, although a later label is stored.
        assert published["version"] == first
        assert [name for name, _, _ in published["labels"]] == ["n0"]
        assert [m["request"] for m in made.process._postponed] == [1]
        made.process._between = between  # type: ignore[method-assign]
        made.process._publish()
        (published,) = made.sent()
        assert published["version"] == second
        rows = dict(zip(published.arrays["nodes"], published.arrays["probabilities"], strict=True))
        if 4 in rows:
            assert torch.allclose(
                torch.tensor(rows[4]), torch.tensor(pulled.arrays["probabilities"][1]), atol=1e-5
            )


def test_labels_that_arrive_during_a_push_become_one_next_push(run: Run, tmp_path: Path) -> None:
    with engine(run, tmp_path) as made:
        for node in ("n0", "n2", "n4"):
            version = made.label(node)
            made.give(kind="stored", version=version)
        made.give(kind="pull", request=1, ids=["n0"])
        made.process._inbox.put(None)
        while (message := made.process._inbox.get()) is not None:
            made.process._take(message)
        made.process._publish()
        answers = made.sent()
        assert [m["kind"] for m in answers] == ["answer", "published"]
        assert answers[1]["version"] == version
        assert len(answers[1]["labels"]) == 3


def test_published_rows_stay_within_rounding_of_the_engine(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ROUNDING", 0.01)
    with engine(run, tmp_path) as made:
        applied = made.process._applied
        seen = made.process._published.clone()
        skipped = 0
        for step in range(30):
            made.label(f"n{step}", ("red", "green", "blue")[step % 3])
            if step == 20:
                new = NewNode(node="new", values={"size": 1.0, "kind": "a"})
                made.store.write("admin", new)
            made.process._publish()
            (message,) = made.sent()
            nodes = torch.tensor(message.arrays["nodes"])
            if message["added"]:
                seen = torch.cat((seen, torch.full_like(seen[:1], torch.nan)))
            seen[nodes] = torch.tensor(message.arrays["probabilities"])
            everything = torch.arange(len(applied.ids))
            exact = applied.rows(everything, applied.live.logits, applied.observed).probabilities
            assert (exact - seen).abs().max() <= 0.01
            skipped += len(everything) - len(nodes)
        assert skipped


def test_only_an_unknown_node_is_answered_as_unknown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(node: str) -> dict[str, object]:
        raise KeyError("column")

    with engine(run, tmp_path) as made:
        for number, values in enumerate(
            [
                {"kind": "pull", "ids": ["n0", "nobody"]},
                {"kind": "details", "node": "nobody"},
                {"kind": "explain", "node": "nobody", "about": None},
                {"kind": "what-if", "labels": {"nobody": "red"}, "nodes": []},
                {"kind": "what-if", "labels": {"n0": "red"}, "nodes": ["nobody"]},
            ]
        ):
            made.process._answer(Message({"request": number, **values}))
        assert [answer["unknown"] for answer in made.sent()] == ["nobody"] * 5
        monkeypatch.setattr(made.process._questions, "details", fail)
        made.process._answer(Message({"request": 6, "kind": "details", "node": "n0"}))
        (answer,) = made.sent()
        assert "unknown" not in answer.values
        assert "KeyError" in answer["failed"]


@pytest.mark.parametrize("members", [[], ["ridge", "mlp"]])
def test_the_model_is_named_and_an_ensemble_by_its_members(
    members: list[str], tmp_path: Path
) -> None:
    more = {"ensemble.portfolio": "good", "ensemble.members": members} if members else {}
    with engine(table_run(tmp_path, **more), tmp_path) as made:
        made.process._hello()
        about = made.sent()[0]["about"]
    assert about["model"] == ("ensemble" if members else "unimp")
    assert {one["name"] for one in about["members"]} <= set(members)
    assert sum(one["weight"] for one in about["members"]) == pytest.approx(1 if members else 0)
