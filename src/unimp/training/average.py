"""An exponential moving average of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from unimp.model.node_model import NodeModel


class WeightAverage:
    """The moving average of a model's weights, which is scored and stored instead of them.

        w̄ ← d w̄ + (1 − d) w  after step t,  d = min(decay, (1 + t) / (10 + t))

    At first d is smaller than `decay`, so that the initial weights do not last. Buffers, such as
    the running statistics of a batch norm, are not averaged. A decay of 0 means no average.
    """

    def __init__(self, model: NodeModel, decay: float) -> None:
        self.decay = decay
        self._names = [name for name, _ in model.named_parameters()] if decay else []
        self._weights = [weight.detach() for weight in model.parameters()] if decay else []
        self._average = [weight.clone() for weight in self._weights]
        self._steps = 0

    def update(self) -> None:
        """Include the weights after a step."""
        if self.decay:
            decay = min(self.decay, (1 + self._steps) / (10 + self._steps))
            self._steps += 1
            torch._foreach_lerp_(self._average, self._weights, 1.0 - decay)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Give the model the average as its weights within this context."""
        before = [weight.clone() for weight in self._weights]
        self._overwrite(self._weights, self._average)
        try:
            yield
        finally:
            self._overwrite(self._weights, before)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `restore` needs, by name."""
        if not self.decay:
            return {}
        named = dict(zip(self._names, self._average, strict=True))
        return {"steps": torch.tensor(self._steps), **{f"of.{n}": a for n, a in named.items()}}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from stored tensors."""
        if self.decay:
            self._steps = int(tensors["steps"])
            self._overwrite(self._average, [tensors[f"of.{name}"] for name in self._names])

    @staticmethod
    def _overwrite(into: list[Tensor], values: list[Tensor]) -> None:
        # In place: recorded steps keep the addresses of the weights.
        for place, value in zip(into, values, strict=True):
            place.copy_(value)
