"""Solve ridge regressions of one matrix for several penalties at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Linear = Callable[[Array], Array]

TOLERANCE = 1e-4


class Products:
    """The products of Z = [rows | scale · beside] with itself and with targets Y, for any scale.

        W = (ZᵀZ + λI)⁻¹ Zᵀ Y = Zᵀ (Z Zᵀ + λI)⁻¹ Y

    Of the two forms, the one with the smaller matrix is used. rows [n, P], beside [n, Q], Y [n, C].
    """

    def __init__(self, rows: Array, beside: Array, target: Array) -> None:
        self._rows, self._beside = rows, beside
        self._is_tall = rows.shape[0] >= rows.shape[1] + beside.shape[1]
        if self._is_tall:
            self._own, self._other = rows.T @ rows, beside.T @ beside
            self._cross = rows.T @ beside
            self._sides = rows.T @ target, beside.T @ target
        else:
            self._own, self._other = rows @ rows.T, beside @ beside.T
            self._target = target

    def weights(
        self, scale: float, penalties: Sequence[float]
    ) -> Iterator[tuple[Array, Array, float]]:
        """Yield W [P + Q, C] as two parts, and ‖Z W‖², for each penalty λ."""
        if self._is_tall:
            cross, other = scale * self._cross, scale**2 * self._other
            matrix = np.block([[self._own, cross], [cross.T, other]])
            side = np.concatenate((self._sides[0], scale * self._sides[1]))
        else:
            matrix, side = self._own + scale**2 * self._other, self._target
        value, vector = np.linalg.eigh(matrix)
        value, turned = value.clip(min=0)[:, None], vector.T @ side
        for penalty in penalties:
            found = turned / (value + penalty)
            power = value if self._is_tall else value**2
            squares = float((power * found**2).sum())
            found = vector @ found
            if self._is_tall:
                own, other = np.split(found, [self._rows.shape[1]])
            else:
                own, other = self._rows.T @ found, scale * self._beside.T @ found
            yield own, other, squares


def solve_by_gradients(
    forward: Linear, adjoint: Linear, target: Array, penalties: Sequence[float], max_steps: int
) -> list[Array]:
    """Return the same W for each penalty by conjugate gradients, without storing Z.

    forward computes Z W, adjoint computes Zᵀ R. All penalties share the products with Z
    (multi-shift conjugate gradients; Jegerlehner, 1996). The steps end when the system with the
    smallest penalty has a relative residual of TOLERANCE, or after max_steps. Columns are
    independent.
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
    for _ in range(max_steps):
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
