"""Hints in error messages."""

import pytest

from unimp.errors import nearest_names


@pytest.mark.parametrize("form", ["animal-{}", "animal-{:04d}", "Animal_{:03d}", "animal {}"])
def test_a_name_that_is_written_in_another_way_is_the_only_suggestion(form: str) -> None:
    known = [form.format(n) for n in range(1500)]
    for given in ("animal-01", "animal-1", "ANIMAL_001"):
        if given not in known:
            assert nearest_names(given, known) == f"did you mean {form.format(1)!r}?"


def test_similar_names_are_suggested_and_few_names_are_listed() -> None:
    assert "'accuracy'" in nearest_names("acuracy", ["accuracy", "f1"])
    assert "'ogbn-arxiv'" in nearest_names("arxiv", ["ogbn-arxiv", "debian"])
    assert nearest_names("x", ["debian", "arxiv"]) == "choose one of arxiv, debian"
