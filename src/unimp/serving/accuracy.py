"""How often the model was right, measured on labels that arrived after it had predicted them.

Each label is stored with what the model predicted just before. A prediction counts if the label of
its node was not an input, and if its event is in force; the last such event of a node counts. The
truth is the label that the node has now, so a correction by a reviewer counts as the truth.

All labels together are biased, because the ranking prefers doubtful nodes. The random sample of the
queue is not, except for its nodes without an answer, which are counted: people skip what is
difficult.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unimp.serving.events import Predicted, label_of
from unimp.serving.reader import Reader
from unimp.serving.state import IN_FORCE

BINS = 10


@dataclass(frozen=True)
class Bin:
    """The predictions whose probability is in one interval."""

    low: float
    high: float
    count: int
    probability: float
    accuracy: float
    error: float


@dataclass(frozen=True)
class Accuracy:
    """The accuracy and calibration of predictions, with standard errors.

    accuracy ± error: the share of correct predictions; NaN without any. probability: the mean of
    the predicted probabilities. gap ± gap_error: probability − accuracy; above 0 the model is too
    confident. calibration_error: Σ |probability − accuracy| of each bin, weighted by its count.
    """

    count: int
    correct: int
    accuracy: float
    error: float
    probability: float
    gap: float
    gap_error: float
    calibration_error: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class LiveAccuracy:
    """The accuracy on all labels and, without bias, on the random sample of the queue.

    unanswered: nodes of the sample that do not count, because they were skipped, are still leased,
    or have a label without a prediction before it.
    """

    all: Accuracy
    random: Accuracy
    unanswered: int
    version: int


_TESTS = f"""
    select event.node, predicted, now.label, sample.node is not null
    from event join now on now.node = event.node left join sample on sample.node = event.node
    where kind = 'label' and predicted is not null and now.label is not null and {IN_FORCE}
    order by event.version desc
"""


def live_accuracy(
    reader: Reader, *, generation: int | None = None, last: int | None = None
) -> LiveAccuracy:
    """Score the predictions that were stored with labels.

    generation: only predictions of this generation of the model. last: only the latest ones, of
    all labels and of the sample each.
    """
    seen: set[str] = set()
    tests: list[tuple[float, bool]] = []
    random: list[tuple[float, bool]] = []
    with reader.state() as db:
        version = reader.head()
        (sampled,) = db.execute("select count(*) from sample").fetchone()
        for node, text, label, is_sampled in db.execute(_TESTS):
            predicted = Predicted.model_validate_json(text)
            if predicted.informed or node in seen:
                continue
            seen.add(node)
            sampled -= is_sampled
            if generation is not None and predicted.generation != generation:
                continue
            test = (predicted.probability, predicted.label == label_of(label))
            tests.append(test)
            if is_sampled:
                random.append(test)
    return LiveAccuracy(score(tests[:last]), score(random[:last]), sampled, version)


def score(tests: Sequence[tuple[float, bool]]) -> Accuracy:
    """Score predictions, given as their probability and whether they were correct."""
    count, correct = len(tests), sum(right for _, right in tests)
    accuracy, error = _mean([float(right) for _, right in tests])
    probability, _ = _mean([p for p, _ in tests])
    gap, gap_error = _mean([p - right for p, right in tests])
    bins = tuple(_bin(tests, number) for number in range(BINS))
    off = sum(one.count * abs(one.probability - one.accuracy) for one in bins if one.count)
    return Accuracy(
        count,
        correct,
        accuracy,
        error,
        probability,
        gap,
        gap_error,
        off / count if count else math.nan,
        tuple(one for one in bins if one.count),
    )


def _bin(tests: Sequence[tuple[float, bool]], number: int) -> Bin:
    inside = [test for test in tests if min(int(test[0] * BINS), BINS - 1) == number]
    accuracy, error = _mean([float(right) for _, right in inside])
    probability, _ = _mean([p for p, _ in inside])
    return Bin(number / BINS, (number + 1) / BINS, len(inside), probability, accuracy, error)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error s / √n; NaN where there are too few values."""
    count = len(values)
    if not count:
        return math.nan, math.nan
    mean = math.fsum(values) / count
    if count == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1) / count)
