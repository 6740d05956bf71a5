"""Recipes: what options are set to.

A recipe is a TOML file of the sections below. `load_recipe` reads one by name or path and lays
settings over it: texts `section.key=value`, or a dictionary {"section.key": value}. What it does
not set keeps the default that `options.py` declares.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from unimp.config.options import (
    BatchOptions,
    InferenceOptions,
    MaskOptions,
    ModelOptions,
    Section,
    SmoothOptions,
    TablesOptions,
    TaskOptions,
    TrainOptions,
)
from unimp.config.task_names import task_names
from unimp.errors import RecipeError, nearest_names
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.tasks.task import Sizes

Settings = Iterable[str] | Mapping[str, Any]
"""What is laid over a recipe: texts `section.key=value`, or {"section.key": value}."""

NARROW = 16
"""Features of fewer columns are encoded, unless a recipe says otherwise."""

LAYER_OF: dict[str, Literal["transformer", "gat", "gcn"]] = {
    "unimp": "transformer",
    "gat": "gat",
    "gcn": "gcn",
}
"""Models that take features and labels as UniMP does, and the layer each has."""


TABLE_FILES = ("nodes", "edges", "train_ids", "val_ids", "test_ids")
"""Options of [tables] that are paths."""

TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc"}
"""How files end that hold a table, and so no recipe."""


class Recipe(Section):
    """Everything one run depends on, but the seed."""

    name: str = ""
    about: str = ""
    task: TaskOptions = TaskOptions()
    tables: TablesOptions = TablesOptions()
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
            feature_encoder=self.encodes_features(sizes),
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

    def with_regime(self, regime: Literal["full", "partition", "neighbors"]) -> Recipe:
        """This recipe with the graph cut in one way."""
        if self.batch.regime == regime:
            return self
        batch = self.batch.model_copy(update={"regime": regime})
        return self.model_copy(update={"batch": batch})

    def with_absolute_paths(self) -> Recipe:
        """This recipe with absolute paths, so that it means the same from any folder."""
        paths = {
            key: str(Path(value).resolve())
            for key, value in (("name", self.task.name), ("bundle", self.task.bundle))
            if value.endswith(".npz")
        }
        recipe = self.model_copy(update={"task": self.task.model_copy(update=paths)})
        return recipe.with_tables_in(Path.cwd())

    def with_tables_in(self, folder: Path) -> Recipe:
        """This recipe with the paths of its tables taken from a folder, but for absolute ones."""
        named = {key: getattr(self.tables, key) for key in TABLE_FILES}
        paths = {key: str(folder.resolve() / path) for key, path in named.items() if path}
        return self.model_copy(update={"tables": self.tables.model_copy(update=paths)})

    def encodes_features(self, sizes: Sizes) -> bool:
        """Whether features are encoded before labels are added to them.

        The norm that follows would leave little of a few columns: of one nothing, of two a sign.
        """
        if self.model.feature_encoder != "auto":
            return self.model.feature_encoder
        return sizes.sparse or sizes.features < NARROW

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump())

    def with_settings(self, settings: Settings) -> Recipe:
        """This recipe with settings laid over it: `section.key=value`, or {"section.key": value}.

        The value in a text is read as TOML; one in a dictionary is taken as it is.
        """
        values = self.model_dump(exclude_unset=True)  # what was set stays known as set
        for path, value in read_settings(settings):
            section, key = _place(path)
            values.setdefault(section, {})[key] = value
        return _validated(values)


def options() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every option: section, key, and the field that declares it."""
    for section in SECTIONS:
        for key, declared in _section_fields(section).items():
            yield section, key, declared


UNFELT = ("train.checkpoint_every", "batch.workers")
"""Options that change no result."""


def differences(found: Recipe, wanted: Recipe) -> list[str]:
    """The options in which two recipes differ, in words.

    A regime that is wanted as `auto` is whatever it was found to be.
    """
    before, now = found.model_dump(), wanted.model_dump()
    if now["batch"]["regime"] == "auto":
        now["batch"]["regime"] = before["batch"]["regime"]
    if now["task"]["name"] == "tables" and Path(before["task"]["name"]).name == "task.npz":
        now["task"]["name"] = before["task"]["name"]  # a run keeps what it read from tables
    return [
        f"{section}.{key} {before[section][key]}, now {now[section][key]}"
        for section, key, _ in options()
        if before[section][key] != now[section][key] and f"{section}.{key}" not in UNFELT
    ]


def choices(declared: FieldInfo) -> list[str]:
    """The words an option takes, where it takes words of its own."""
    kind = declared.annotation
    words = [w for k in (kind, *get_args(kind)) if get_origin(k) is Literal for w in get_args(k)]
    return [str(word) for word in words if word != ""]


def load_recipe(name: str | Path, settings: Settings = ()) -> Recipe:
    """A recipe by name, by path, or the default one for a task of that name."""
    path = Path(name)
    names = recipe_names()
    if str(name) in names:
        text = (_recipe_folder() / f"{name}.toml").read_text(encoding="utf-8")
        recipe = read_recipe(text, str(name))
    elif path.suffix == ".toml":
        if not path.is_file():
            raise RecipeError(
                f"no recipe file {name}; for two tables `unimp init NODES EDGES` writes one"
            )
        recipe = read_recipe(_text_of(path), path.stem, path).with_tables_in(path.parent)
        kept = path.parent / recipe.task.name
        if recipe.task.name == "task.npz" and kept.is_file():  # the recipe of a run
            recipe = recipe.with_task(kept)
    elif path.suffix == ".npz" or str(name) in task_names():
        recipe = Recipe(name=path.stem, task=TaskOptions(name=str(name)))
    else:
        raise RecipeError(_no_recipe(path, [*names, *task_names()]))
    recipe = recipe.with_settings(settings)
    if (
        recipe.tables.nodes
        and recipe.task.name != "tables"
        and not recipe.task.name.endswith(".npz")
    ):
        raise RecipeError(
            f"task.name is {recipe.task.name!r}, but [tables] names files too; write task.name = "
            '"tables", or take [tables] away'
        )
    return recipe


def read_recipe(text: str, name: str, path: Path | None = None) -> Recipe:
    """Parse a recipe's TOML; `name` is used where the recipe itself gives none.

    A recipe of tables that is called `recipe`, as `unimp init` does, is named after its nodes.
    `path` is what messages call it.
    """
    called = path or name
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(
            f"recipe {called} is not valid TOML: {error}; lines are [section] or key = value"
        ) from error
    problems = []
    for section, given in values.items():
        if section in ("name", "about"):
            continue
        if section not in SECTIONS:
            problems.append(
                f"recipe {called}: no section [{section}]; {nearest_names(section, SECTIONS)}"
            )
        elif not isinstance(given, dict):
            problems.append(
                f"recipe {called}: {section} = {given!r} is no section; write [{section}] on a "
                "line of its own and its options below"
            )
        else:
            problems += _unknown_options(section, given)
    if problems:
        raise RecipeError("\n".join(problems))
    if nodes := values.get("tables", {}).get("nodes"):  # whoever names tables means them
        values["task"] = {"name": "tables", **values.get("task", {})}
        if name == "recipe":
            name = Path(str(nodes)).name.partition(".")[0] or name
    return _validated({"name": name, **values})


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    files = (entry.name for entry in _recipe_folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


SECTIONS = tuple(key for key in Recipe.model_fields if key not in ("name", "about"))


def _recipe_folder() -> Any:
    return resources.files("unimp.config") / "recipes"


def _section_fields(section: str) -> dict[str, FieldInfo]:
    kind = Recipe.model_fields[section].annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    return kind.model_fields


def _no_recipe(path: Path, known: Iterable[str]) -> str:
    """What to say of a name that is no recipe; a table, or a folder, is a likely mistake."""
    if path.is_dir():
        kept = path / "recipe.toml"
        return f"{path} is a folder; " + (
            f"its recipe is {kept}"
            if kept.is_file()
            else "`unimp init NODES EDGES` writes a recipe for two tables"
        )
    if {suffix.lower() for suffix in path.suffixes} & TABLE_SUFFIXES:
        return f"{path} is a table: `unimp init NODES EDGES` writes a recipe for two of them"
    return f"no recipe or task {str(path)!r}; {nearest_names(str(path), known)}"


def _place(path: str) -> tuple[str, str]:
    section, _, key = path.partition(".")
    known = [f"{s}.{k}" for s, k, _ in options()]
    if f"{section}.{key}" not in known:
        raise RecipeError(f"no option {path!r}; {nearest_names(path, known)}")
    return section, key


def read_settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Each setting as the option's place and its value."""
    if isinstance(settings, str):
        settings = (settings,)
    if isinstance(settings, Mapping):
        for path, value in settings.items():
            # Searches hand over numbers of numpy's, and tuples.
            plain = value.item() if isinstance(value, np.generic) else value
            yield path, list(plain) if isinstance(plain, tuple) else plain
        return
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise RecipeError(f"{setting!r} is no setting; write section.key=value")
        yield path.strip(), _parsed(text.strip())


def _unknown_options(section: str, given: Iterable[str]) -> Iterator[str]:
    """What is to be said of each option that a section does not have."""
    for key in given:
        try:
            _place(f"{section}.{key}")
        except RecipeError as error:
            yield str(error)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error


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
            f"{'.'.join(str(part) for part in _place_of(problem))}: {_told(problem)} "
            f"(given: {problem['input']!r})"
            for problem in error.errors()
        ]
        raise RecipeError("\n".join(dict.fromkeys(problems))) from error


def _place_of(problem: ErrorDetails) -> tuple[int | str, ...]:
    """Section and option; of an option that holds columns, the column too."""
    place = problem["loc"]
    return place[: 3 if place[:2] in (("tables", "features"), ("tables", "edge_features")) else 2]


_WORDS = {
    "int_type": "it takes a whole number",
    "int_from_float": "it takes a whole number",
    "float_type": "it takes a number",
    "bool_type": "it takes true or false",
    "string_type": "it takes a text",
    "list_type": "it takes a list, such as [10, 5]",
    "dict_type": 'it takes columns and the kind of each; write {column = "numeric"}',
    "model_type": "it is a section; write [section] on a line of its own and its options below",
    "finite_number": "it takes a finite number",
    "greater_than": "it must be more than",
    "greater_than_equal": "it must be at least",
    "less_than": "it must be less than",
    "less_than_equal": "it must be at most",
}
_LIMITS = {
    "greater_than": "gt",
    "greater_than_equal": "ge",
    "less_than": "lt",
    "less_than_equal": "le",
}


def _told(problem: ErrorDetails) -> str:
    """What is wrong with a value; a word that the option does not take, by the nearest it does."""
    place, kind = problem["loc"][:2], problem["type"]
    declared = None
    if len(place) == 2 and place[0] in SECTIONS:
        declared = _section_fields(str(place[0])).get(str(place[1]))
    words = [] if declared is None else choices(declared)
    if declared is None or not words or not (kind.endswith("_type") or kind == "literal_error"):
        told = _WORDS.get(kind, problem["msg"].removeprefix("Value error, "))
        limits = problem.get("ctx", {}) if kind in _LIMITS else {}
        return f"{told} {limits[_LIMITS[kind]]:g}" if limits else told
    takes = [*_kinds(declared), *words]
    near = nearest_names(str(problem["input"]), words)
    hint = f"; {near}" if near.startswith("did you mean") else ""
    first = f"{', '.join(takes[:-1])} or " if takes[:-1] else ""
    return f"it takes {first}{takes[-1]}{hint}"


def _kinds(declared: FieldInfo) -> list[str]:
    """What an option takes beside words of its own, in words."""
    named = {bool: "true, false", int: "a whole number", float: "a number"}
    kinds = [declared.annotation, *get_args(declared.annotation)]
    plain = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]
    return [named[kind] for kind in plain if kind in named]
