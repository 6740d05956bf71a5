"""Correct & Smooth: spread observed labels over the probabilities of a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.config.choices import Normalization
from unimp.errors import RecipeError, TaskError
from unimp.graph.graph import Graph
from unimp.model.label_propagation import propagate
from unimp.tasks.labels import UNLABELED

MAX_FACTOR = 1000.0
"""The largest factor by which a residual is scaled."""


@torch.no_grad()
def correct_and_smooth(
    graph: Graph,
    probabilities: Tensor,
    observed: Tensor,
    *,
    form: Literal["smooth", "correct-and-smooth"] = "correct-and-smooth",
    normalization: Normalization = "sym",
    steps: int = 50,
    correct_alpha: float = 0.8,
    correct_scale: float | Literal["auto"] = "auto",
    smooth_alpha: float = 0.5,
) -> Tensor:
    """Apply Correct & Smooth (Huang et al., 2021) to probabilities [N, classes]; rows sum to 1.

    Correct: a model makes similar errors on nearby nodes, so its residuals at observed nodes, with
    Y their one-hot labels and Z the given probabilities, are spread and added:

        E⁰_i = Y_i − Z_i at observed nodes, 0 elsewhere       Eˡ⁺¹ = α_c S Eˡ + (1 − α_c) E⁰
        auto:     Z'_i = Z_i + f_i E_i, f_i = σ / ‖E_i‖₁      σ = mean ‖E⁰_i‖₁ of observed nodes
                                (f_i = 1 where that exceeds 1000, as in the authors' code)
        a factor: Z'_i = Z_i + factor · E_i                   E_i = E⁰_i after each step if observed

    Smooth: nearby nodes are similar, so the labels and the corrected probabilities are spread:

        G⁰_i = Y_i at observed nodes, Z'_i cut to 0 … 1 elsewhere   Gˡ⁺¹ = α_s S Gˡ + (1 − α_s) G⁰

    and each row of G is divided by its sum. S is the matrix of `edge_weights`; messages flow from
    source to target. As in the authors' code, entries of G, and of E unless it is scaled by a
    factor, are cut to −1 … 1 after each step. A node that no residual reaches keeps its
    probabilities when correcting, and so does one without in-edges when smoothing. The form
    `smooth` leaves the first half out.

    observed: [N], the class, or UNLABELED; no other label is used. Binary tasks are refused: to
    scale the correction of a single number to a given size would keep only its sign.
    """
    if observed.ndim != 1 or probabilities.shape[:1] != observed.shape:
        raise TaskError(
            f"observed labels have shape {tuple(observed.shape)} and probabilities "
            f"{tuple(probabilities.shape)}. Correct & Smooth needs one class per node, not binary "
            "tasks."
        )
    if not 0 <= correct_alpha <= 1 or not 0 <= smooth_alpha < 1:
        raise RecipeError(
            f"correct_alpha is {correct_alpha} and smooth_alpha is {smooth_alpha}; choose shares "
            "between 0 and 1, with smooth_alpha below 1"
        )
    known = observed != UNLABELED
    one_hot = F.one_hot(observed[known].long(), probabilities.shape[1]).to(probabilities)
    chances = probabilities
    if form == "correct-and-smooth":
        residual = torch.zeros_like(chances)
        residual[known] = one_hot - chances[known]
        spread = propagate(
            graph,
            residual,
            normalization=normalization,
            steps=steps,
            restart=1.0 - correct_alpha,
            keep=None if correct_scale == "auto" else known[:, None],
            cut=correct_scale == "auto",
        )
        if correct_scale == "auto":
            mean_size = residual.abs().sum() / known.sum().clamp(min=1)
            factor = mean_size / spread.abs().sum(1, keepdim=True)
            # A tiny residual is not enlarged: a node far from every label keeps its probabilities.
            chances = chances + torch.where(factor <= MAX_FACTOR, factor, 1.0) * spread
        else:
            chances = chances + correct_scale * spread
    start = chances.clamp(0.0, 1.0)
    start[known] = one_hot
    smooth = propagate(
        graph,
        start,
        normalization=normalization,
        steps=steps,
        restart=1.0 - smooth_alpha,
        cut=True,
    )
    return smooth / smooth.sum(1, keepdim=True)


def smoothing_in_words(found: Mapping[str, Any], metric: str) -> str:
    """State in one line whether nodes were chosen after smoothing, and the validation scores."""
    if found["note"]:
        return f"chosen by the run without smoothing: {found['note']}"
    alone, smoothed = (f"{100 * value:.2f} %" for value in found["val"].values())
    if found["smoothed"]:
        return (
            f"chosen with Correct & Smooth: validation {metric} {smoothed}, the model alone {alone}"
        )
    return (
        f"chosen by the model alone: validation {metric} {alone}, with Correct & Smooth {smoothed}"
    )
