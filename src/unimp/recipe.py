"""Every option, declared once, with its help text; and the recipes that set them.

A recipe is a TOML file of the sections below. `load_recipe` reads one by name or path and lays
`section.key=value` settings over it. What it does not set keeps the default declared here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from unimp.errors import RecipeError, nearest_names
from unimp.graph.reorder import Order
from unimp.model.appnp import APPNP
from unimp.model.baselines import MLP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.node_model import NodeModel
from unimp.model.propagation import Clamp, Normalization
from unimp.model.unimp import UniMP
from unimp.ops.attention import Backend
from unimp.ops.sampling import ALL
from unimp.tasks.catalog import task_names
from unimp.tasks.task import Sizes
from unimp.training.precision import Precision


def option(default: Any, help: str, **limits: Any) -> Any:
    """One option: its default and the sentence that the command line shows for it."""
    return Field(default=default, description=help, **limits)


def _checked_fanout(number: int) -> int:
    if number != ALL and number < 1:
        raise ValueError("a fanout is at least 1, or -1 for all in-neighbors")
    return number


Fanout = Annotated[int, AfterValidator(_checked_fanout)]
Scale = Annotated[float, Field(gt=0, le=1e30)]


ModelName = Literal["unimp", "gcn", "gat", "appnp", "gcn-lpa", "mlp", "label-propagation"]

LAYER_OF: dict[str, Literal["transformer", "gat", "gcn"]] = {
    "unimp": "transformer",
    "gat": "gat",
    "gcn": "gcn",
}
"""Models that take features and labels as UniMP does, and the layer each has."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TaskOptions(Section):
    """What is asked, of which graph."""

    name: str = option("debian", "a task's name (unimp data list), or the path of an .npz file")
    split: int | Literal["seed"] = option(
        "seed", "which split of the task; `seed`: the one numbered as the run's seed"
    )
    bundle: str = option(
        "", "debian tasks: a bundle made by `unimp data build-debian`; empty: the one shipped"
    )
    features: str = option("", "another array of the .npz file to use as node features")
    metric: Literal["", "accuracy", "rocauc"] = option(
        "", ".npz files: how to score; empty: as the file says"
    )
    node_features: Literal["sum", "mean"] = option(
        "sum", "ogbn-proteins: how edge features become node features (paper: mean; its code: sum)"
    )
    scale: float = option(1.0, "synthetic tasks: size relative to the original", gt=0)
    scale_rows: bool = option(False, "divide each node's features by their sum")
    symmetrize: bool = option(False, "add the reverse of every edge")
    self_loops: bool = option(False, "add a self-loop to every node")
    order: Order = option(
        "given",
        "how nodes lie in memory: as given, or neighbors near one another by rcm or metis (extra "
        "unimp[metis]); node numbers stay yours, but dropout, parts and sampled neighbors are "
        "drawn anew, as by another seed",
    )


class ModelOptions(Section):
    """What answers."""

    name: ModelName = option(
        "unimp",
        "UniMP; UniMP with the layers of a gcn or a gat; or a baseline: an mlp on features alone, "
        "appnp, gcn-lpa, label-propagation",
    )
    inputs: Literal["X,A,Y", "X,A", "A,Y"] = option(
        "X,A,Y", "what unimp, gcn and gat receive: features X, edges A, observed labels Y"
    )
    layers: int = option(3, "graph layers (or layers of an MLP)", ge=1)
    width: int = option(128, "width of each head (an MLP is heads × width wide)", ge=1)
    heads: int = option(2, "attention heads", ge=1)
    dropout: float = option(0.3, "after each hidden layer", ge=0, lt=1)
    input_dropout: float = option(0.3, "on the sum of features and labels", ge=0, lt=1)
    attention_dropout: float = option(0.0, "on attention weights; the paper has none", ge=0, lt=1)
    residual: Literal["auto", "none", "simple", "gated"] = option(
        "auto",
        "what a node keeps of itself: nothing, ĥ + r, or (1−β) ĥ + β r (equation 4); auto: gated, "
        "and none for a gcn or a gat",
    )
    gate: Literal["none", "last", "all"] = option(
        "last", "layers that are gated if residual = gated (others: ĥ + r); the paper's text: all"
    )
    gate_bias: bool = option(True, "a bias in the gate")
    input_norm: bool = option(True, "LayerNorm on the sum of features and labels")
    head: Literal["average", "linear"] = option(
        "average", "the last layer averages its heads (equation 5), or a linear layer follows it"
    )
    feature_encoder: bool | Literal["auto"] = option(
        "auto", "Linear + LayerNorm on features before labels are added; auto: if they are sparse"
    )
    edge_features: bool = option(True, "use edge features, where the task has them")
    edge_encoder: Literal["per-layer", "shared"] = option(
        "per-layer", "one edge encoder a layer, or one for all (needs head = linear)"
    )
    label_width: int = option(128, "width of the label embedding where there are no features", ge=1)
    backend: Backend = option(
        "auto",
        "what computes attention: native on CPU, triton on GPU, sparse or reference anywhere; "
        "the numbers are the same up to rounding",
    )
    steps: int = option(50, "label propagation: iterations", ge=1)
    restart: float = option(
        0.1, "label propagation: share of the start kept in each step; the paper: 0", ge=0, lt=1
    )
    normalization: Normalization = option(
        "row", "label propagation: row, D⁻¹A as in the paper; sym, D^-½ A D^-½; column, A D⁻¹"
    )
    clamp: Clamp = option(
        "none", "label propagation: each step puts observed labels back, or cuts entries to 1"
    )

    propagation_steps: int = option(10, "appnp: steps of propagation, each a hop", ge=1)
    teleport: float = option(
        0.1, "appnp: share of the first prediction kept in each step", ge=0, le=1
    )
    lpa_weight: float = option(
        1.0, "gcn-lpa: weight of propagated labels in the loss; 0: none", ge=0
    )


class MaskOptions(Section):
    """Masked label prediction."""

    label_rate: float = option(
        0.625,
        "share of the known labels that are observed in training; the rest is hidden",
        ge=0,
        lt=1,
    )
    redraw: Literal["step", "epoch", "run"] = option("epoch", "how often a new mask is drawn")
    unit: Literal["node", "group"] = option(
        "node",
        "what is hidden or observed as one; group: all labels of a group, where the task's split "
        "keeps groups together",
    )


class BatchOptions(Section):
    """How the graph is cut for training."""

    regime: Literal["full", "partition", "neighbors"] = option(
        "full", "the whole graph, random parts of it, or sampled neighbors of hidden nodes"
    )
    prune: bool = option(
        True, "full, on CPU: compute only what the hidden nodes can be reached from; the same loss"
    )
    parts: int = option(9, "partition: number of parts, drawn anew each epoch", ge=1)
    batch_size: int = option(1500, "neighbors: hidden nodes a step", ge=1)
    fanout: list[Fanout] = option(
        [10], "neighbors: in-neighbors a target, for each layer or one for all; -1: every one"
    )
    workers: int = option(1, "threads that prepare batches ahead; 0: none", ge=0)


class TrainOptions(Section):
    """The loop."""

    epochs: int = option(500, "passes over the batches", ge=1)
    lr: float = option(1e-3, "Adam's step size", gt=0, le=1e30)
    weight_decay: float = option(
        0.0, "L2 on every parameter, coupled as in the paper", ge=0, le=1e30
    )
    eval_from: int = option(1, "the first epoch that is scored", ge=1)
    eval_every: int = option(1, "score every so many epochs; the last one is always scored", ge=1)
    patience: int = option(0, "stop after so many epochs without as good a score; 0: never", ge=0)
    time_limit: float = option(0.0, "seconds after which no epoch is begun; 0: none", ge=0)
    device: str = option("auto", "cpu, cuda, or auto: cuda where there is one")
    precision: Precision = option(
        "fp32",
        "of forward passes, in training and prediction; for GPUs, tf32: quicker matrix products, "
        "bf16: half the bytes too (weights, loss and optimizer stay fp32)",
    )
    replay: bool = option(
        True, "full, on GPU: record a step once, as a CUDA graph, and replay it; the same steps"
    )


class InferenceOptions(Section):
    """How logits are computed when scoring and predicting."""

    regime: Literal["exact", "partition"] = option(
        "exact", "all in-neighbors, layer by layer; or random parts, as the paper on proteins"
    )
    chunk_edges: int = option(
        5_000_000,
        "exact: edges a layer handles at a time; bounds memory, changes nothing else",
        ge=1,
    )
    parts: int = option(5, "partition: number of parts", ge=1)
    passes: int = option(1, "partition: partitions whose logits are averaged", ge=1)


class SmoothOptions(Section):
    """Correct & Smooth: what observed labels do to probabilities after training."""

    form: Literal["none", "smooth", "correct-and-smooth"] = option(
        "none",
        "after the model, in scores and predictions: spread the observed labels; or the model's "
        "residuals at observed nodes first. An epoch is chosen by its logits as they are",
    )
    normalization: Normalization = option("sym", "as of label propagation")
    steps: int = option(50, "iterations of each half", ge=1)
    correct_alpha: float = option(
        0.8, "share of a residual that comes from in-neighbors in each step", ge=0, le=1
    )
    correct_scale: Scale | Literal["auto"] = option(
        "auto", "factor of the residuals added; auto: each to the mean size of those observed"
    )
    smooth_alpha: float = option(
        0.5, "share of a probability that comes from in-neighbors in each step", ge=0, lt=1
    )


class Recipe(Section):
    """Everything one run depends on, but the seed."""

    name: str = ""
    about: str = ""
    task: TaskOptions = TaskOptions()
    model: ModelOptions = ModelOptions()
    mask: MaskOptions = MaskOptions()
    batch: BatchOptions = BatchOptions()
    train: TrainOptions = TrainOptions()
    inference: InferenceOptions = InferenceOptions()
    smooth: SmoothOptions = SmoothOptions()

    @property
    def label_rate(self) -> float:
        """The share of known labels observed in training; 0 for a model that takes none."""
        m = self.model
        sees_labels = m.name in ("unimp", "gcn", "gat") and "Y" in m.inputs
        learns_from_labels = m.name == "gcn-lpa" and m.lpa_weight > 0
        return self.mask.label_rate if sees_labels or learns_from_labels else 0.0

    def build_model(self, sizes: Sizes) -> NodeModel:
        """The model, freshly initialized; label propagation has none to build."""
        m = self.model
        if m.name == "label-propagation":
            raise RecipeError("label propagation has no parameters, so there is no model to build")
        if m.name == "mlp":
            return MLP(sizes, layers=m.layers, width=m.heads * m.width, dropout=m.dropout)
        if m.name == "appnp":
            return APPNP(
                sizes,
                layers=m.layers,
                width=m.heads * m.width,
                dropout=m.dropout,
                steps=m.propagation_steps,
                teleport=m.teleport,
            )
        if m.name == "gcn-lpa":
            return GCNLPA(
                sizes,
                layers=m.layers,
                width=m.heads * m.width,
                dropout=m.dropout,
                lpa_weight=m.lpa_weight,
            )
        layer = LAYER_OF[m.name]
        plain: Literal["gated", "none"] = "gated" if layer == "transformer" else "none"
        return UniMP(
            sizes,
            layers=m.layers,
            width=m.width,
            heads=m.heads,
            dropout=m.dropout,
            input_dropout=m.input_dropout,
            attention_dropout=m.attention_dropout,
            residual=plain if m.residual == "auto" else m.residual,
            gate=m.gate,
            gate_bias=m.gate_bias,
            input_norm=m.input_norm,
            head=m.head,
            feature_encoder=sizes.sparse if m.feature_encoder == "auto" else m.feature_encoder,
            edge_encoder=m.edge_encoder,
            use_features="X" in m.inputs,
            use_labels="Y" in m.inputs,
            use_edge_features=m.edge_features,
            label_width=m.label_width,
            backend=m.backend,
            layer=layer,
        )

    def with_task(self, path: Path) -> Recipe:
        """This recipe for the task in an `.npz` file."""
        task = self.task.model_copy(update={"name": str(path.resolve())})
        return self.model_copy(update={"task": task})

    def with_absolute_paths(self) -> Recipe:
        """This recipe with absolute paths, so that it means the same from any folder."""
        paths = {
            key: str(Path(value).resolve())
            for key, value in (("name", self.task.name), ("bundle", self.task.bundle))
            if value.endswith(".npz")
        }
        return self.model_copy(update={"task": self.task.model_copy(update=paths)})

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump())

    def with_settings(self, settings: Iterable[str]) -> Recipe:
        """This recipe with `section.key=value` settings laid over it."""
        values = self.model_dump()
        for setting in settings:
            path, equals, text = setting.partition("=")
            if not equals:
                raise RecipeError(f"{setting!r} is no setting; write section.key=value")
            section, key = _place(path.strip())
            values[section][key] = _parsed(text.strip())
        return _validated(values)


def options() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every option: section, key, and the field that declares it."""
    for section in SECTIONS:
        for key, declared in _section_fields(section).items():
            yield section, key, declared


def choices(declared: FieldInfo) -> list[str]:
    """The words an option takes, where it takes words of its own."""
    kind = declared.annotation
    words = [w for k in (kind, *get_args(kind)) if get_origin(k) is Literal for w in get_args(k)]
    return [str(word) for word in words if word != ""]


def load_recipe(name: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by name, by path, or the default one for a task of that name."""
    path = Path(name)
    names = recipe_names()
    if str(name) in names:
        text = (_recipe_folder() / f"{name}.toml").read_text(encoding="utf-8")
        recipe = read_recipe(text, str(name))
    elif path.suffix == ".toml":
        if not path.is_file():
            raise RecipeError(f"no recipe file {name}")
        recipe = read_recipe(path.read_text(encoding="utf-8"), path.stem)
    elif path.suffix == ".npz" or str(name) in task_names():
        recipe = Recipe(name=path.stem, task=TaskOptions(name=str(name)))
    else:
        known = [*names, *task_names()]
        raise RecipeError(f"no recipe or task {str(name)!r}; {nearest_names(str(name), known)}")
    return recipe.with_settings(settings)


def read_recipe(text: str, name: str) -> Recipe:
    """Parse a recipe's TOML; `name` is used where the recipe itself gives none."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"recipe {name} is not valid TOML: {error}") from error
    for section, given in values.items():
        if section in ("name", "about"):
            continue
        if section not in SECTIONS:
            raise RecipeError(
                f"recipe {name}: no section [{section}]; {nearest_names(section, SECTIONS)}"
            )
        if not isinstance(given, dict):
            raise RecipeError(
                f"recipe {name}: {section} = {given!r} is no section; write [{section}] on a line "
                "of its own and its options below"
            )
        for key in given:
            _place(f"{section}.{key}")
    return _validated({"name": name, **values})


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    files = (entry.name for entry in _recipe_folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


SECTIONS = tuple(key for key in Recipe.model_fields if key not in ("name", "about"))


def _recipe_folder() -> Any:
    return resources.files("unimp") / "recipes"


def _section_fields(section: str) -> dict[str, FieldInfo]:
    kind = Recipe.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return kind.model_fields


def _place(path: str) -> tuple[str, str]:
    section, _, key = path.partition(".")
    known = [f"{s}.{k}" for s, k, _ in options()]
    if f"{section}.{key}" not in known:
        raise RecipeError(f"no option {path!r}; {nearest_names(path, known)}")
    return section, key


def _parsed(text: str) -> Any:
    """A value as TOML reads it; bare words are strings, so that quotes need not be typed."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validated(values: dict[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in problem['loc'][:2])}: {problem['msg']} "
            f"(given: {problem['input']!r})"
            for problem in error.errors()
        ]
        raise RecipeError("\n".join(dict.fromkeys(problems))) from error
