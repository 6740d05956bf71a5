"""The table of models: every row builds a model that is what the row states."""

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.config.choices import Inputs
from unimp.config.options import ModelOptions
from unimp.data.synthetic import synthetic_task
from unimp.errors import ModelError
from unimp.inference.logits import predict_logits
from unimp.model import registry
from unimp.model.node_model import NodeModel, count_parameters
from unimp.model.registry import build_model
from unimp.model.solved_model import KnownLabels, SolvedModel
from unimp.model.table import MODELS, ModelEntry, find_model, inputs_of, most_parameters
from unimp.model.trees import Trees
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Sizes, Task


@pytest.fixture(scope="module")
def task() -> Task:
    return synthetic_task(num_nodes=60, num_edges=240, num_classes=3, num_features=20)


def model_of(task: Task, name: str, inputs: str = "X,A,Y") -> NodeModel:
    torch.manual_seed(0)
    options = ModelOptions.model_validate(
        {"name": name, "inputs": inputs, "width": 4, "layers": 2, "label_width": 8, "steps": 3}
    )
    model = build_model(options, task.sizes).eval()
    if isinstance(model, Trees):  # many trees from many labels depend on all inputs
        nodes = torch.arange(len(task.labels))
        known = KnownLabels(task.labels, nodes, nodes[:0], task.metric)
        model.solve(model.prepare(task.graph), known, seed=0)
    return model


ROWS = [
    pytest.param(entry, inputs, id=f"{entry.name} {inputs}")
    for entry in MODELS.values()
    for inputs in entry.inputs
]


@pytest.mark.parametrize(("entry", "inputs"), ROWS)
def test_a_model_takes_the_labels_of_its_inputs_and_learns_if_it_has_parameters(
    entry: ModelEntry, inputs: str, task: Task
) -> None:
    model = model_of(task, entry.name, inputs)
    assert (count_parameters(model) > 0) == model.learns == entry.learns
    assert model.attends == entry.attends
    assert model.takes_labels == ("Y" in inputs)


@pytest.mark.parametrize("entry", MODELS.values(), ids=lambda entry: entry.name)
def test_inputs_that_are_not_in_the_row_are_refused(entry: ModelEntry, task: Task) -> None:
    default = ModelOptions().inputs
    for inputs in get_args(Inputs):
        options = ModelOptions(name=entry.name, inputs=inputs)
        if inputs in entry.inputs:
            assert inputs_of(options, asked=True) == inputs
            continue
        with pytest.raises(ModelError, match=rf"{inputs}, but {entry.name} takes"):
            inputs_of(options, asked=True)
        if inputs == default:  # nobody asked for it
            assert inputs_of(options) == entry.inputs[0]
            assert model_of(task, entry.name).takes_labels == ("Y" in entry.inputs[0])
        else:
            with pytest.raises(ModelError, match=rf"{inputs}, but {entry.name} takes"):
                model_of(task, entry.name, inputs)


@pytest.mark.parametrize(("entry", "inputs"), ROWS)
def test_a_model_depends_on_exactly_the_inputs_of_its_row(
    entry: ModelEntry, inputs: str, task: Task
) -> None:
    """Features X, edges A and labels Y are changed one at a time."""
    model = model_of(task, entry.name, inputs)
    observed = reveal_only(task.split.train, task.labels)
    other = torch.where(observed >= 0, (observed + 1) % 3, observed)
    edges = task.graph.edge_index.clone()
    edges[1] = edges[1].roll(7)
    changed = {
        "X": (task.graph.with_features(task.graph.x * -2 + 1), observed),  # type: ignore[operator]
        "A": (type(task.graph).from_edges(edges, num_nodes=60, x=task.graph.x), observed),
        "Y": (task.graph, other),
    }

    def logits(graph: object, labels: torch.Tensor) -> torch.Tensor:
        return predict_logits(model, model.prepare(graph), labels)  # type: ignore[arg-type]

    before = logits(task.graph, observed)
    depends = {name for name, given in changed.items() if not torch.equal(before, logits(*given))}
    assert depends == set(inputs.split(","))


@pytest.mark.parametrize("entry", MODELS.values(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("features", [3, 5000])
@pytest.mark.parametrize("classes", [2, 700])
@pytest.mark.parametrize("size", [{"width": 2, "layers": 2}, {"width": 64, "layers": 9}])
def test_the_bound_of_parameters_is_above_their_number(
    entry: ModelEntry, features: int, classes: int, size: dict[str, int]
) -> None:
    options = ModelOptions(name=entry.name, propagated_labels="Y" in entry.inputs[0], **size)
    with torch.device("meta"):
        model = build_model(options, Sizes(features, 9, classes, False))
    most = most_parameters(options, features=features, classes=classes, edge_features=9)
    assert count_parameters(model) <= most


def test_every_row_states_how_its_model_is_built() -> None:
    assert list(registry.BUILDERS) == list(MODELS)


def test_every_row_states_whether_its_model_is_solved(task: Task) -> None:
    for name, entry in MODELS.items():
        model = registry.build_model(ModelOptions(name=name), task.sizes)
        assert isinstance(model, SolvedModel) == entry.solved


def test_the_inputs_of_all_rows_are_words_that_exist() -> None:
    for name, entry in MODELS.items():
        assert entry.name == name
        assert entry.inputs
        assert set(entry.inputs) <= set(get_args(Inputs))


@pytest.mark.parametrize(
    ("given", "nearest"), [("uinmp", "unimp"), ("lable-propagation", "label-propagation")]
)
def test_an_unknown_model_is_refused_with_the_nearest_name(given: str, nearest: str) -> None:
    with pytest.raises(ModelError, match=f"'{given}'.*'{nearest}'"):
        find_model(given)


def test_a_class_and_a_row_make_a_model_that_every_regime_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).parents[2]
    path = root / "examples/adding_a_model.py"
    page = (root / "docs/adding-a-model.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert shown == path.read_text("utf-8")
    model = runpy.run_path(str(path))["NeighborMean"]
    monkeypatch.setitem(MODELS, "neighbor-mean", ModelEntry("neighbor-mean", ("X,A",)))
    monkeypatch.setitem(registry.BUILDERS, "neighbor-mean", registry._hidden_layers(model))
    small = ["model.name=neighbor-mean", "task.scale=0.02", "model.width=4", "train.epochs=2"]
    for regime in ("full", "partition", "neighbors"):
        run = unimp.run("synthetic", settings=[*small, f"batch.regime={regime}"], progress=False)
        assert isinstance(run.model, model)
        assert not run.takes_labels
    assert run.explain(3).node == 3


def test_the_options_of_a_recipe_list_every_model() -> None:
    text = CliRunner().invoke(app, ["recipe", "show", "synthetic"]).output
    assert " | ".join(MODELS) in " ".join(text.split())
