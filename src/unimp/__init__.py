"""Label the rest of a graph from its features and the labels already known.

`run("debian")` trains UniMP on the bundled graph; `run.py` is the file to read first.

A name is imported when it is first asked for, so that `unimp --help`, or a program that only
catches `UnimpError`, need not wait for torch.
"""

__version__ = "0.1.0"

import sys
from collections.abc import Collection
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for whoever reads the source without running it
    from unimp.errors import UnimpError as UnimpError
    from unimp.estimator import UniMPClassifier as UniMPClassifier
    from unimp.graph.features import SparseFeatures as SparseFeatures
    from unimp.graph.graph import Graph as Graph
    from unimp.graph.hop import Hop as Hop
    from unimp.inference.logits import predict_logits as predict_logits
    from unimp.model.masked_labels import MaskedLabels as MaskedLabels
    from unimp.model.transformer_conv import TransformerConv as TransformerConv
    from unimp.model.unimp import UniMP as UniMP
    from unimp.ops.attention import graph_attention as graph_attention
    from unimp.recipe import Recipe as Recipe
    from unimp.recipe import load_recipe as load_recipe
    from unimp.run import run as run
    from unimp.tasks.catalog import load_task as load_task
    from unimp.tasks.from_tables import task_from_tables as task_from_tables
    from unimp.tasks.labels import UNLABELED as UNLABELED
    from unimp.tasks.labels import LabelMask as LabelMask
    from unimp.tasks.labels import Split as Split
    from unimp.tasks.labels import mask_labels as mask_labels
    from unimp.tasks.npz import save_npz as save_npz
    from unimp.tasks.task import Task as Task
    from unimp.trained import Run as Run
    from unimp.trained import load_run as load_run

_MODULE_OF = {
    "UNLABELED": "tasks.labels",
    "Graph": "graph.graph",
    "Hop": "graph.hop",
    "LabelMask": "tasks.labels",
    "MaskedLabels": "model.masked_labels",
    "Recipe": "recipe",
    "Run": "trained",
    "SparseFeatures": "graph.features",
    "Split": "tasks.labels",
    "Task": "tasks.task",
    "TransformerConv": "model.transformer_conv",
    "UniMP": "model.unimp",
    "UniMPClassifier": "estimator",
    "UnimpError": "errors",
    "graph_attention": "ops.attention",
    "load_recipe": "recipe",
    "load_run": "trained",
    "load_task": "tasks.catalog",
    "mask_labels": "tasks.labels",
    "predict_logits": "inference.logits",
    "run": "run",
    "save_npz": "tasks.npz",
    "task_from_tables": "tasks.from_tables",
}

__all__ = [  # spelled out for whoever reads the source without running it
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


class _Package(ModuleType):
    """This package, or one in it: what it holds is imported when it is first asked for.

    Python binds a module in its package when it is imported: `unimp.run` would then be the module,
    and no longer the function.
    """

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
            setattr(self, name, found)
            return found
        path = f"{self.__name__}.{name}"
        if not name.startswith("_"):
            try:
                return import_module(path)
            except ModuleNotFoundError as error:
                if error.name != path:  # it is there, and what it needs is not
                    raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            if name in self._names:
                return
            if hasattr(value, "__path__"):
                value.__class__ = _Package
        super().__setattr__(name, value)

    @property
    def _names(self) -> Collection[str]:
        return _MODULE_OF if self.__name__ == __name__ else ()


sys.modules[__name__].__class__ = _Package
