"""Table 1 by experiment."""

from pathlib import Path

import torch

from unimp.studies import paper
from unimp.studies.cells import Subject
from unimp.studies.information import conclude_information, next_class
from unimp.tasks.labels import UNLABELED


def test_what_models_use_is_what_the_paper_says(small_subject: Subject) -> None:
    findings = conclude_information(small_subject, {})
    marks = {row.words[0]: row.words[1:5] for row in findings.tables[0].rows}
    assert marks == {
        model: tuple("✓" if used else "–" for used in said)
        for model, said in paper.INFORMATION.items()
    }
    assert {claim.agrees for claim in findings.claims} == {"yes"}
    for row in findings.tables[1].rows:
        assert row.ours["control"] == {0: 0.0}  # the same twice, so that any movement is a sign


def test_every_known_label_is_changed_and_none_is_added() -> None:
    observed = torch.tensor([0, UNLABELED, 2])
    assert next_class(observed, 3).tolist() == [1, UNLABELED, 0]


def test_its_page_says_that_it_has_a_task_of_its_own(everything: object, tmp_path: Path) -> None:
    page = (everything.place / "information.md").read_text()  # type: ignore[attr-defined]
    assert "generated graph" in page
    assert "small" not in page.splitlines()[2]
    assert "t-test" not in page  # marks are not judged by seeds
