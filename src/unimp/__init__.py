"""Label the rest of a graph from its features and the labels already known.

`run("debian")` trains UniMP on the bundled graph; `run.py` is the file to read first.
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from unimp.errors import UnimpError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.inference.logits import predict_logits
from unimp.model.masked_labels import MaskedLabels
from unimp.model.transformer_conv import TransformerConv
from unimp.model.unimp import UniMP
from unimp.ops.attention import graph_attention
from unimp.recipe import Recipe, load_recipe
from unimp.run import run
from unimp.tasks.catalog import load_task
from unimp.tasks.from_tables import task_from_tables
from unimp.tasks.labels import UNLABELED, LabelMask, Split, mask_labels
from unimp.tasks.npz import save_npz
from unimp.tasks.task import Task
from unimp.trained import Run, load_run

if TYPE_CHECKING:
    from unimp.estimator import UniMPClassifier

__all__ = [
    "UNLABELED",
    "Graph",
    "Hop",
    "LabelMask",
    "MaskedLabels",
    "Recipe",
    "Run",
    "SparseFeatures",
    "Split",
    "Task",
    "TransformerConv",
    "UniMP",
    "UniMPClassifier",
    "UnimpError",
    "graph_attention",
    "load_recipe",
    "load_run",
    "load_task",
    "mask_labels",
    "predict_logits",
    "run",
    "save_npz",
    "task_from_tables",
]


def __getattr__(name: str) -> Any:
    """The classifier when it is asked for: scikit-learn takes longer to import than all else."""
    if name == "UniMPClassifier":
        from unimp.estimator import UniMPClassifier

        return UniMPClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
