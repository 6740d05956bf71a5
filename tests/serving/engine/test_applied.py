"""The engine's answers are those of a cold prediction, whatever happened before."""

import random
from pathlib import Path

import pytest
import torch
from small_runs import cold, some_write, table_run

from unimp.errors import TaskError
from unimp.runs.run import Run
from unimp.serving.engine.applied import Applied
from unimp.serving.events import Label
from unimp.serving.store import Store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return table_run(tmp_path_factory.mktemp("tables"))


@pytest.mark.parametrize("seed", range(6))
def test_answers_equal_a_cold_prediction_after_any_events(
    seed: int, run: Run, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    names = list(run.task.node_names or ())
    with Store(tmp_path) as store:
        store.people.add("admin", "admin")
        applied = Applied(run, store.reader)
        for step in range(12):
            for _ in range(draw.randrange(1, 5)):
                store.write("admin", some_write(draw, store.reader, names))
            expected = cold(run, store.reader)
            asked = draw.sample(names, 5)
            assert applied.refresh().version == store.reader.head()
            numbers = applied.numbers_of(asked)
            pulled = applied.answer(torch.tensor(numbers)).probabilities
            assert torch.allclose(pulled, expected[numbers], atol=1e-5)
            if step % 3 == 0:
                applied.apply()
                rows = applied.rows(torch.arange(len(names)), applied.live.logits, applied.observed)
                assert torch.allclose(rows.probabilities, expected, atol=1e-5)
        again = Applied(run, store.reader)  # as after a restart
        again.apply()
        applied.apply()
        assert torch.allclose(again.live.logits, applied.live.logits, atol=1e-5)


def test_applied_labels_do_not_contain_events_that_are_stored_later(
    run: Run, tmp_path: Path
) -> None:
    with Store(tmp_path) as store:
        store.people.add("admin", "admin")
        store.write("admin", Label(node="n0", label="red"))
        applied = Applied(run, store.reader)
        applied.apply()
        store.write("admin", Label(node="n0", label="blue"))
        assert applied.label_of("n0") == ("red", 1)
        assert applied.label_of("n0", pending=True) == ("blue", 2)
        assert applied.label_of("n0") == ("red", 1)
        assert applied.label_of("n1", pending=True) == (None, 0)


def test_values_that_the_run_cannot_encode_are_refused(run: Run, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        additions = Applied(run, store.reader).additions
        assert additions.columns == ["size", "kind"]
        for values in ({"size": 1.0}, {"size": "x", "kind": "a"}, {"size": 1.0, "color": "red"}):
            with pytest.raises(TaskError):
                additions.features(["new"], [values])
