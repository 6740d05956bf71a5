"""Choose the weights of an ensemble on validation, and measure how optimistic this choice is.

Everything here sees validation labels only. A member is represented by the probability that it
gives to the right answer of each validation entry: an entry is a node, or one binary label of a
node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unimp.config.choices import Metric
from unimp.tasks.labels import UNLABELED
from unimp.tasks.metrics import score

ROUNDS = 25
"""The largest number of members that one selection adds, with repetitions."""
BAGS, BAGS_BY_SCORE = 20, 4
"""The number of random halves whose weights are averaged; a score takes longer than a loss."""
SMALLEST_WEIGHT = 0.02
MOST_ROWS = 2000
"""The most rows that a score is computed on, because ROC-AUC sorts them in each round."""
PATIENCE = 5
"""Rounds without a better score after which the search ends."""
SMALLEST = 1e-9
"""A probability of a right answer below this counts as this, so that its logarithm is finite."""


def chances_of_answers(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The probability of each right answer: [entries], from [n, C] and labels [n] or [n, T]."""
    known = labels != UNLABELED
    if labels.ndim == 1:
        rows = probabilities[known]
        return rows.gather(1, labels[known, None].long()).squeeze(1).double()
    right = torch.where(labels == 1, probabilities, 1 - probabilities)
    return right[known].double()


def greedy_weights(chances: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Weights [M] of the members with these chances of right answers [M, entries].

    Forward selection with replacement (Caruana et al., 2004): in each round, the member is added
    that makes the log-loss of the mean smallest,

        m* = argmin_m  −Σ_i log( (s_i + chance_mi) / (k + 1) ),      s ← s + chance_m*

    and the round with the smallest loss decides. If two members are equally good, the first is
    taken, so cheaper members come first. Without entries, the first member gets all the weight.
    """
    members, entries = chances.shape
    counts = torch.zeros(members, dtype=torch.int64)
    if not entries:
        counts[0] = 1
        return counts.double()
    chances = chances.clamp(min=SMALLEST)
    total = torch.zeros(entries, dtype=torch.float64)
    best_loss, best = float("inf"), counts
    for number in range(rounds):
        losses = (number + 1.0) / (total + chances)  # the inverse of each mean
        losses = losses.log().mean(1)
        chosen = int(losses.argmin())
        counts = counts.clone()
        counts[chosen] += 1
        total += chances[chosen]
        if float(losses[chosen]) < best_loss - 1e-9:
            best_loss, best = float(losses[chosen]), counts
    return best.double() / best.sum()


def greedy_by_score(
    probabilities: Sequence[Tensor], labels: Tensor, metric: Metric, rounds: int = ROUNDS
) -> Tensor | None:
    """Weights [M] as `greedy_weights` finds them, with the score itself in place of the log-loss.

    Ranks decide the area under the ROC curve, and a member with a good log-loss may rank badly. The
    search ends after a few rounds without a better score. At most MOST_ROWS rows are scored; None
    if no score is defined on them, because they contain one class only.
    """
    rows = torch.linspace(0, len(labels) - 1, min(len(labels), MOST_ROWS)).long()
    given, labels = [p[rows].double() for p in probabilities], labels[rows]
    counts = torch.zeros(len(given), dtype=torch.int64)
    total = torch.zeros_like(given[0])
    best_score, best = -float("inf"), counts
    for number in range(rounds):
        scores = [score(metric, total + p, labels) for p in given]
        chosen = max(range(len(scores)), key=lambda m: (scores[m], -m))
        counts = counts.clone()
        counts[chosen] += 1
        total += given[chosen]
        if scores[chosen] > best_score:
            best_score, best = scores[chosen], counts
        if number + 1 - int(best.sum()) >= PATIENCE:
            break
    return best.double() / best.sum() if best.any() else None


def choose_weights(probabilities: Sequence[Tensor], labels: Tensor, metric: Metric) -> Tensor:
    """The weights of members, from calibrated probabilities [n, C] of the validation nodes.

    For accuracy, the log-loss chooses them. For ROC-AUC, there are three candidates: weights chosen
    by the score, weights chosen by the log-loss, and the best member alone. The candidate with the
    best score is taken, so that an ensemble is never below its best member on validation.
    """
    by_loss = _weights_of_halves(probabilities, labels, metric, by_loss=True)
    if metric == "accuracy" or not math.isfinite(score(metric, probabilities[0], labels)):
        return by_loss
    by_score = _weights_of_halves(probabilities, labels, metric, by_loss=False)
    scores = [score(metric, given, labels) for given in probabilities]
    alone = torch.zeros_like(by_loss)
    alone[scores.index(max(scores))] = 1.0
    return max(
        (by_score, by_loss, alone),
        key=lambda weights: score(metric, mixed(probabilities, weights), labels),
    )


def _weights_of_halves(
    probabilities: Sequence[Tensor], labels: Tensor, metric: Metric, *, by_loss: bool
) -> Tensor:
    """The mean of the weights that several random halves of the nodes give.

    The weights of one selection depend on single nodes. Weights below SMALLEST_WEIGHT become 0.
    """
    draw = torch.Generator().manual_seed(0)
    if by_loss:
        chances = torch.stack([chances_of_answers(p, labels) for p in probabilities])
    rows = chances.shape[1] if by_loss else len(labels)
    found = []
    for _ in range(BAGS if by_loss else BAGS_BY_SCORE):
        half = torch.randperm(rows, generator=draw)[: (rows + 1) // 2]
        if by_loss:
            found.append(greedy_weights(chances[:, half]))
        elif math.isfinite(score(metric, probabilities[0][half], labels[half])):
            given = [p[half] for p in probabilities]
            weights = greedy_by_score(given, labels[half], metric)
            found += [] if weights is None else [weights]
    if not found:  # no half contains both classes
        return _weights_of_halves(probabilities, labels, metric, by_loss=True)
    weights = torch.stack(found).mean(0)
    weights[weights < min(SMALLEST_WEIGHT, float(weights.max()))] = 0
    return weights / weights.sum()


def score_of(probabilities: Tensor, labels: Tensor, metric: Metric) -> float:
    """The score of probabilities [n, C]; `score` expects scores that are positive for yes."""
    return score(metric, probabilities - 0.5 if labels.ndim == 2 else probabilities, labels)


def mixed(probabilities: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The weighted mean of the members' probabilities: [n, C]."""
    total = torch.zeros_like(probabilities[0], dtype=torch.float64)
    for given, weight in zip(probabilities, weights.tolist(), strict=True):
        total += weight * given.double()
    return total


def nested_score(
    probabilities: Sequence[Tensor],
    labels: Tensor,
    metric: Metric,
    *,
    seed: int,
    groups: Tensor | None = None,
) -> float:
    """The score of the ensemble where weights never see the labels that score them.

    The validation nodes are divided into two halves, which keep groups together. Weights that are
    chosen on one half are scored on the other, and the other way around; the mean of both scores is
    an estimate without the optimism of choosing and scoring on the same labels.
    """
    first = _half(len(labels), groups, seed)
    scores = []
    for chosen_on in (first, ~first):
        given = [p[chosen_on] for p in probabilities]
        weights = choose_weights(given, labels[chosen_on], metric)
        answer = mixed([p[~chosen_on] for p in probabilities], weights)
        scores.append(score_of(answer, labels[~chosen_on], metric))
    return sum(scores) / len(scores)  # not defined if one half contains only one class


def _half(count: int, groups: Tensor | None, seed: int) -> Tensor:
    """A random half of the rows, [count] bool; rows of one group are in the same half."""
    of_row = torch.arange(count) if groups is None else torch.unique(groups, return_inverse=True)[1]
    number = int(of_row.max()) + 1 if count else 0
    order = torch.randperm(number, generator=torch.Generator().manual_seed(seed))
    return order[of_row] < (number + 1) // 2
