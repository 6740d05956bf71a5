"""Masks and splits decide which labels a model receives."""

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

RATES = st.sampled_from([0.0, 0.1, 0.5, 0.625, 0.99, 1.0])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def divided_groups(mask: LabelMask, groups: Tensor) -> set[int]:
    """The groups of which part is observed and part hidden."""
    observed, hidden = (set(groups[part].tolist()) for part in (mask.observed, mask.hidden))
    return observed & hidden


@given(
    st.lists(st.booleans(), max_size=60),
    RATES,
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


@given(st.integers(0, 60), st.integers(1, 20), RATES, st.integers(0, 99))
def test_groups_are_hidden_or_observed_whole_but_for_the_one_that_the_exact_count_divides(
    num_nodes: int, num_groups: int, label_rate: float, seed: int
) -> None:
    # Numbers of groups need be neither small nor in order, and a group may hold unknown nodes.
    names = torch.tensor([2**40, 7, -3, *range(100, 117)])
    groups = names[torch.randint(num_groups, (num_nodes,), generator=generator(seed))]
    known = torch.rand(num_nodes, generator=generator(seed + 1)) < 0.8
    mask = mask_labels(known, label_rate, generator=generator(seed), groups=groups)
    assert int(mask.observed.sum()) == round(label_rate * int(known.sum()))
    assert not bool((mask.observed & mask.hidden).any())
    assert torch.equal(mask.observed | mask.hidden, known)
    assert len(divided_groups(mask, groups)) <= 1


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_groups_of_one_size_are_divided_only_where_the_count_falls_within_one(
    size: int, observed: int, seed: int
) -> None:
    groups = torch.arange(8 * size) % 8  # apart from one another in memory
    mask = mask_labels(
        torch.ones(8 * size, dtype=torch.bool),
        observed / 8,
        generator=generator(seed),
        groups=groups,
    )
    assert divided_groups(mask, groups) == set()
    assert int(torch.unique(groups[mask.observed]).numel()) == observed


def test_masks_by_group_hang_on_the_seed_and_each_draw_is_a_new_one() -> None:
    known, groups = torch.ones(200, dtype=torch.bool), torch.arange(200) // 5

    def drawn(stream: torch.Generator) -> Tensor:
        return mask_labels(known, 0.5, generator=stream, groups=groups).observed

    first, again, other = (drawn(generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    stream = generator(3)
    assert not torch.equal(drawn(stream), drawn(stream))


def test_every_group_is_equally_likely_to_be_observed() -> None:
    known, groups, stream = torch.ones(12, dtype=torch.bool), torch.arange(12) // 3, generator(0)
    draws = [mask_labels(known, 0.5, generator=stream, groups=groups).observed for _ in range(2000)]
    share = torch.stack(draws).float().mean(0)
    assert bool(((share - 0.5).abs() < 0.05).all())


def test_the_node_that_a_divided_group_gives_up_is_drawn_too() -> None:
    known, groups, stream = torch.ones(4, dtype=torch.bool), torch.arange(4) // 4, generator(0)
    draws = [mask_labels(known, 0.25, generator=stream, groups=groups).observed for _ in range(50)]
    assert bool(torch.stack(draws).any(0).all())


@given(st.lists(st.booleans(), max_size=60), RATES, st.integers(0, 99))
def test_without_groups_masks_are_what_they_were(
    flags: list[bool], label_rate: float, seed: int
) -> None:
    # Published numbers hang on these: one shuffle of the known nodes, cut at the label rate.
    known = torch.tensor(flags, dtype=torch.bool)
    nodes = torch.nonzero(known).squeeze(1)
    shuffled = nodes[torch.randperm(len(nodes), generator=generator(seed))]
    expected = torch.zeros_like(known)
    expected[shuffled[: round(label_rate * len(nodes))]] = True
    for options in ({}, {"groups": None}):
        mask = mask_labels(known, label_rate, generator=generator(seed), **options)
        assert torch.equal(mask.observed, expected)


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
    with pytest.raises(TaskError, match=r"no protocol 'test'; use train or train\+val"):
        split.known("test")


@pytest.mark.parametrize("again", ["val", "test", "train"])
def test_no_node_stands_twice_in_a_split(again: str) -> None:
    sets = {"train": [4, 1], "val": [0], "test": [2, 3]}
    sets[again] = [*sets[again], 4]
    with pytest.raises(TaskError, match="node 4 is in the split twice"):
        Split(**{name: torch.tensor(nodes) for name, nodes in sets.items()})
