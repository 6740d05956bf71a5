"""Table 1, found by experiment."""

from pathlib import Path

import torch

from unimp.studies import paper
from unimp.studies.cells import Subject
from unimp.studies.information import information, next_class
from unimp.tasks.labels import UNLABELED


def test_models_use_the_information_that_the_paper_lists(small_subject: Subject) -> None:
    findings = information.conclude(small_subject, {})
    found = {row.words[0]: row.words[1:5] for row in findings.tables[0].rows}
    assert found == {
        model: tuple("✓" if used else "–" for used in marks)
        for model, marks in paper.INFORMATION.items()
    }
    assert {claim.agrees for claim in findings.claims} == {"yes"}
    for row in findings.tables[1].rows:
        assert row.ours["control"] == {0: 0.0}  # two equal runs give equal outputs


def test_every_known_label_is_changed_and_none_is_added() -> None:
    observed = torch.tensor([0, UNLABELED, 2])
    assert next_class(observed, 3).tolist() == [1, UNLABELED, 0]


def test_its_page_does_not_name_the_task(everything: object, tmp_path: Path) -> None:
    page = (everything.place / "information.md").read_text()  # type: ignore[attr-defined]
    assert "graph is generated" in page
    assert "small" not in page.splitlines()[2]
    assert "t-test" not in page  # there are no seeds to compare
