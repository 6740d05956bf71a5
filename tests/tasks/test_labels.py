"""Who may see which label."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unimp.errors import TaskError
from unimp.tasks.labels import (
    UNLABELED,
    LabelMask,
    Split,
    is_known,
    mask_labels,
    reveal_only,
)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    st.lists(st.booleans(), max_size=60),
    st.sampled_from([0.0, 0.1, 0.5, 0.625, 0.99, 1.0]),
    st.integers(0, 99),
)
def test_known_labels_are_divided_exactly_by_the_label_rate(
    flags: list[bool], label_rate: float, seed: int
) -> None:
    known = torch.tensor(flags, dtype=torch.bool)
    mask = mask_labels(known, label_rate, generator=generator(seed))
    assert int(mask.observed.sum()) == round(label_rate * sum(flags))
    assert not bool((mask.observed & mask.hidden).any())
    assert torch.equal(mask.observed | mask.hidden, known)


def test_the_same_seed_draws_the_same_mask_and_another_seed_another() -> None:
    known = torch.ones(200, dtype=torch.bool)
    first, again, other = (
        mask_labels(known, 0.5, generator=generator(seed)).observed for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_each_draw_from_one_generator_is_a_new_mask() -> None:
    known, stream = torch.ones(200, dtype=torch.bool), generator(0)
    first, second = (mask_labels(known, 0.5, generator=stream).observed for _ in range(2))
    assert not torch.equal(first, second)


def test_every_known_label_is_equally_likely_to_be_observed() -> None:
    known, stream = torch.arange(12) % 3 != 0, generator(0)
    draws = [mask_labels(known, 0.5, generator=stream).observed for _ in range(2000)]
    share = torch.stack(draws).float().mean(0)
    assert bool((share[~known] == 0).all())
    assert bool(((share[known] - 0.5).abs() < 0.05).all())


@pytest.mark.parametrize("label_rate", [-0.1, 1.1, float("nan")])
def test_a_label_rate_is_a_share(label_rate: float) -> None:
    with pytest.raises(TaskError, match="it is a share of the known labels, 0 to 1"):
        mask_labels(torch.ones(3, dtype=torch.bool), label_rate, generator=generator(0))


def test_a_label_is_not_both_observed_and_hidden() -> None:
    both = torch.tensor([True, False])
    with pytest.raises(TaskError, match="both observed and hidden"):
        LabelMask(observed=both, hidden=both)


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([3, 1, UNLABELED, 0, 2]),
        torch.tensor([[1, 0], [0, 0], [1, UNLABELED], [1, 1], [0, 1]], dtype=torch.int8),
    ],
    ids=["classes", "binary tasks"],
)
def test_only_observed_labels_are_revealed(labels: Tensor) -> None:
    observed = torch.tensor([True, False, True, False, False])
    hidden = torch.tensor([False, True, False, True, False])
    before = labels.clone()
    revealed = LabelMask(observed, hidden).reveal(labels)
    assert torch.equal(revealed[observed], labels[observed])
    assert bool((revealed[~observed] == UNLABELED).all())
    assert revealed.dtype == labels.dtype
    assert torch.equal(labels, before)
    assert torch.equal(reveal_only(torch.tensor([2, 0]), labels), revealed)


def test_a_node_is_known_by_one_known_entry() -> None:
    assert is_known(torch.tensor([0, UNLABELED, 5])).tolist() == [True, False, True]
    rows = torch.tensor([[0, UNLABELED], [UNLABELED, UNLABELED], [1, 0]], dtype=torch.int8)
    assert is_known(rows).tolist() == [True, False, True]


def test_a_protocol_reveals_train_labels_alone_or_validation_labels_too() -> None:
    split = Split(torch.tensor([4, 1]), torch.tensor([0]), torch.tensor([2, 3]))
    assert split.known("train").tolist() == [4, 1]
    assert split.known("train+val").tolist() == [4, 1, 0]
    with pytest.raises(TaskError, match=r"no protocol 'test'; there are train and train\+val"):
        split.known("test")


@pytest.mark.parametrize("again", ["val", "test", "train"])
def test_no_node_stands_twice_in_a_split(again: str) -> None:
    sets = {"train": [4, 1], "val": [0], "test": [2, 3]}
    sets[again] = [*sets[again], 4]
    with pytest.raises(TaskError, match="node 4 stands twice in the split"):
        Split(**{name: torch.tensor(nodes) for name, nodes in sets.items()})
