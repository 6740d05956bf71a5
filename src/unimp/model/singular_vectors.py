"""The largest singular vectors of features, to reduce the number of columns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unimp.graph.features import SparseFeatures


def singular_vectors(x: Tensor | SparseFeatures, count: int, seed: int) -> Tensor:
    """The right singular vectors of the largest singular values: [F, count], zero if too few."""
    from sklearn.utils.extmath import randomized_svd

    matrix = x.to_scipy() if isinstance(x, SparseFeatures) else x.cpu().numpy()
    rank = min(count, *matrix.shape)
    _, _, vectors = randomized_svd(matrix, rank, random_state=seed)
    return F.pad(torch.from_numpy(np.ascontiguousarray(vectors.T)).float(), (0, count - rank))
