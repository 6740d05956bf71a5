"""Label the rest of a graph from its features and the labels already known.

`run("debian")` trains UniMP on a bundled graph. Start reading at `runs/experiment.py`.

Each public name is imported on first use, so that `unimp --help` and programs that only catch
`UnimpError` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe as Recipe
    from unimp.config.recipe import load_recipe as load_recipe
    from unimp.data.catalog import load_task as load_task
    from unimp.data.npz import save_npz as save_npz
    from unimp.data.tables.from_tables import task_from_tables as task_from_tables
    from unimp.errors import UnimpError as UnimpError
    from unimp.graph.features import SparseFeatures as SparseFeatures
    from unimp.graph.graph import Graph as Graph
    from unimp.graph.hop import Hop as Hop
    from unimp.inference.logits import predict_logits as predict_logits
    from unimp.model.masked_labels import MaskedLabels as MaskedLabels
    from unimp.model.transformer_conv import TransformerConv as TransformerConv
    from unimp.model.unimp import UniMP as UniMP
    from unimp.ops.attention import graph_attention as graph_attention
    from unimp.runs.experiment import run as run
    from unimp.runs.loading import load_run as load_run
    from unimp.runs.run import Run as Run
    from unimp.sklearn import UniMPClassifier as UniMPClassifier
    from unimp.tasks.labels import UNLABELED as UNLABELED
    from unimp.tasks.labels import LabelMask as LabelMask
    from unimp.tasks.labels import Split as Split
    from unimp.tasks.labels import mask_labels as mask_labels
    from unimp.tasks.task import Task as Task

_MODULE_OF = {
    "UNLABELED": "tasks.labels",
    "Graph": "graph.graph",
    "Hop": "graph.hop",
    "LabelMask": "tasks.labels",
    "MaskedLabels": "model.masked_labels",
    "Recipe": "config.recipe",
    "Run": "runs.run",
    "SparseFeatures": "graph.features",
    "Split": "tasks.labels",
    "Task": "tasks.task",
    "TransformerConv": "model.transformer_conv",
    "UniMP": "model.unimp",
    "UniMPClassifier": "sklearn",
    "UnimpError": "errors",
    "graph_attention": "ops.attention",
    "load_recipe": "config.recipe",
    "load_run": "runs.loading",
    "load_task": "data.catalog",
    "mask_labels": "tasks.labels",
    "predict_logits": "inference.logits",
    "run": "runs.experiment",
    "save_npz": "data.npz",
    "task_from_tables": "data.tables.from_tables",
}

__all__ = [  # type checkers need the names spelled out
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


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # a type checker would accept any name if it saw this function

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found
