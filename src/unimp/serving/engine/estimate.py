"""The memory that the engine needs, from the sizes of the run, before it is used."""

from __future__ import annotations

from unimp.data.memory import available_memory, gib, resident_memory
from unimp.errors import RunError
from unimp.runs.trained_model import TrainedModel

COPIES = 4
"""Numbers per node and class: logits, probabilities, and two copies in the front."""


def needed_memory(run: TrainedModel) -> int:
    """Bytes that the states of all layers take, beyond the run itself.

    The largest layer is counted twice, because its rows exist before and after it. Projections are
    stored only if memory is left.
    """
    nodes, classes = run.task.graph.num_nodes, run.task.num_classes
    if run.members:
        states = sum(needed_memory(member) for member in run.members)
    else:
        model = run.recipe.model
        states = 4 * nodes * model.width * (model.layers + 2) if run.model.by_layer else 0
    return states + COPIES * 4 * nodes * classes + run.task.graph.nbytes


def check_memory(run: TrainedModel) -> str:
    """Refuse a run that does not fit; return the estimate in words."""
    needed, free = needed_memory(run), available_memory(run.device)
    total = needed + resident_memory()
    if needed > free:
        raise RunError(
            f"serving this run takes about {gib(total)}, but only {gib(free)} are free. Close "
            "other programs, or distill the run into a smaller one (`unimp distill`)."
        )
    return f"estimate: about {gib(total)} of memory; {gib(free)} are free"
