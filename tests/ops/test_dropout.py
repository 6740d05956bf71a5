"""Dropout of features."""

import pytest
import torch

from unimp.ops.dropout import dropout


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9])
def test_entries_are_zero_or_scaled_and_the_mean_stays(rate: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(301, 333), rate, training=True)
    dropped = out == 0
    kept = out[~dropped]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - rate)))
    assert abs(float(dropped.float().mean()) - rate) < 0.01


def test_rows_columns_and_neighbors_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(40_000, 8), 0.4, training=True) != 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(8)
    assert float(correlation.abs().max()) < 0.03


def test_gradients_pass_only_where_values_passed() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 7, requires_grad=True)
    out = dropout(x, 0.5, training=True)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (out != 0) * 2.0)


def test_the_seed_of_torch_determines_the_result() -> None:
    x = torch.ones(30, 30)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(dropout(x, 0.5, training=True))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_nothing_happens_outside_training_or_at_rate_zero() -> None:
    x = torch.randn(5, 5)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


@pytest.mark.parametrize("shape", [(0, 4), (1,), (3, 5, 7)])
def test_any_shape_keeps_its_shape_and_type(shape: tuple[int, ...]) -> None:
    out = dropout(torch.ones(shape, dtype=torch.float64), 0.5, training=True)
    assert out.shape == shape
    assert out.dtype == torch.float64
