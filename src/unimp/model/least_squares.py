"""Solve ridge regressions of one matrix for several penalties at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Linear = Callable[[Array], Array]

MAX_STEPS = 100
TOLERANCE = 1e-4


def solve_directly(rows: Array, target: Array, penalties: Sequence[float]) -> Iterator[Array]:
    """Yield W = (ZᵀZ + λI)⁻¹ Zᵀ Y for each penalty λ, from one eigendecomposition.

    It decomposes ZᵀZ or Z Zᵀ, whichever is smaller. rows Z [n, P], target Y [n, C] → W [P, C].
    """
    tall = rows.shape[0] >= rows.shape[1]
    value, vector = np.linalg.eigh(rows.T @ rows if tall else rows @ rows.T)
    value = value.clip(min=0)[:, None]
    side = vector.T @ (rows.T @ target if tall else target)
    for penalty in penalties:
        found = vector @ (side / (value + penalty))
        yield found if tall else rows.T @ found


def solve_by_gradients(
    forward: Linear, adjoint: Linear, target: Array, penalties: Sequence[float]
) -> list[Array]:
    """Return the same W for each penalty by conjugate gradients, without storing Z.

    forward computes Z W, adjoint computes Zᵀ R. All penalties share the products with Z
    (multi-shift conjugate gradients; Jegerlehner, 1996). They end when the system with the smallest
    penalty has a relative residual of TOLERANCE, and after MAX_STEPS. Columns are independent.
    """
    least = min(penalties)
    shift = np.asarray(penalties)[:, None] - least  # [L, 1]
    residual = adjoint(target)  # [P, C]
    squared = np.square(residual).sum(0)  # [C]
    small = TOLERANCE**2 * squared
    direction = residual.copy()
    found = [np.zeros_like(residual) for _ in penalties]
    directions = [residual.copy() for _ in penalties]
    scale = np.ones((len(penalties), target.shape[1]))  # residual of a shifted system ÷ residual
    change = np.ones_like(scale)  # of the scale in the last step
    old_step, momentum = np.ones_like(squared), np.zeros_like(squared)
    for _ in range(MAX_STEPS):
        if bool((squared <= small).all()):
            break
        product = adjoint(forward(direction)) + least * direction
        curvature = (direction * product).sum(0)
        step = np.divide(squared, curvature, out=np.zeros_like(squared), where=curvature > 0)
        change = 1 / (1 + shift * step + step * momentum / old_step * (1 - change))
        scale *= change
        residual -= step * product
        before, squared = squared, np.square(residual).sum(0)
        momentum = np.divide(squared, before, out=np.zeros_like(squared), where=before > 0)
        for index, (solution, way) in enumerate(zip(found, directions, strict=True)):
            solution += step * change[index] * way
            way *= momentum * change[index] ** 2
            way += scale[index] * residual
        direction = residual + momentum * direction
        old_step = np.where(step > 0, step, 1.0)
    return found
