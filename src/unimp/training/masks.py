"""The label masks of training, and the seeds of everything that training draws."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Redraw
from unimp.tasks.labels import LabelMask, mask_labels


class Masks:
    """The label masks of a run: the current mask is a function of (seed, epoch, step).

    With `groups`, all nodes of a group are hidden or observed together. With `rate` = drawn, the
    share of observed labels is drawn for each mask, between 0 and `label_rate`. `wrong_labels` is
    the share of observed labels that are replaced by those of other observed nodes.
    """

    def __init__(
        self,
        known: Tensor,
        label_rate: float,
        *,
        redraw: Redraw,
        seed: int,
        groups: Tensor | None = None,
        rate: Literal["fixed", "drawn"] = "fixed",
        wrong_labels: float = 0.0,
    ) -> None:
        self.known, self.label_rate, self.redraw, self.seed = known, label_rate, redraw, seed
        self.groups, self.rate, self.wrong_labels = groups, rate, wrong_labels
        self._last: tuple[tuple[int, int], LabelMask] | None = None
        self._placed: tuple[LabelMask, LabelMask] | None = None

    def at(self, epoch: int, step: int) -> LabelMask:
        """The mask of a step."""
        moment = self.moment(epoch, step)
        last = self._last
        if last is None or last[0] != moment:  # all steps of an epoch may use the same mask
            last = self._last = moment, self._draw(moment)
        return last[1]

    def placed(self, epoch: int, step: int, device: torch.device) -> LabelMask:
        """The mask of a step on a device; it is copied only once."""
        mask = self.at(epoch, step)
        if device.type == "cpu":
            return mask
        placed = self._placed
        if placed is None or placed[0] is not mask or placed[1].hidden.device != device:
            copy = LabelMask(mask.observed.to(device), mask.hidden.to(device))
            placed = self._placed = mask, copy
        return placed[1]

    def moment(self, epoch: int, step: int) -> tuple[int, int]:
        """The (epoch, step) at which the mask of a step was drawn."""
        return {"run": (0, 0), "epoch": (epoch, 0), "step": (epoch, step)}[self.redraw]

    def _draw(self, moment: tuple[int, int]) -> LabelMask:
        share = self.label_rate
        if self.rate == "drawn":
            share *= generator_for(self.seed, "rate", *moment).random()
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "mask", *moment))
        return mask_labels(self.known, share, generator=generator, groups=self.groups)

    def shown(self, labels: Tensor, epoch: int, step: int) -> Tensor:
        """The labels of all nodes, with wrong ones among those that the mask of a step reveals.

        A replacement comes from an observed node, so it contains nothing about hidden labels.
        """
        if not self.wrong_labels:
            return labels
        nodes = torch.nonzero(self.at(epoch, step).observed).squeeze(1).to(labels.device)
        rng = generator_for(self.seed, "wrong labels", *self.moment(epoch, step))
        wrong = torch.from_numpy(rng.random(len(nodes)) < self.wrong_labels)
        others = torch.from_numpy(rng.permutation(len(nodes)))
        labels = labels.clone()
        labels[nodes[wrong]] = labels[nodes[others[wrong]]]
        return labels

    def dropped(self, share: float, epoch: int, step: int) -> Tensor:
        """A random share of the nodes that the mask of a step hides: [N] bool."""
        rng = generator_for(self.seed, "feature drop", *self.moment(epoch, step))
        return self.at(epoch, step).hidden & torch.from_numpy(rng.random(len(self.known)) < share)


def derived_seed(seed: int, purpose: str, *counters: int) -> int:
    """A seed for each purpose and moment, so that no draw depends on an earlier draw."""
    key = [seed, *purpose.encode(), *counters]
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def generator_for(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derived_seed(seed, purpose, *counters)))
