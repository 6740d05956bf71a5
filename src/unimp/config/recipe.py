"""Recipes: the value of every option that a run depends on.

A recipe is a TOML file with one section per class of `options.py`. `load_recipe` reads one by name
or path and applies settings: texts `section.key=value`, or a dictionary {"section.key": value}.
Options that are not set keep their defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from unimp.config.arguments import FilePath, checked
from unimp.config.choices import Regime
from unimp.config.data_options import TablesOptions, TaskOptions
from unimp.config.ensemble_options import EnsembleOptions
from unimp.config.input_files import MOST_BYTES, open_input, read_opened
from unimp.config.options import (
    BatchOptions,
    InferenceOptions,
    MaskOptions,
    ModelOptions,
    SmoothOptions,
    TrainOptions,
)
from unimp.config.run_files import GUESSED
from unimp.config.section import Section
from unimp.config.task_names import BUNDLED, DATA_SUFFIXES, OGB, task_names
from unimp.config.validation import problems_in_words
from unimp.errors import RecipeError, nearest_names

Settings = str | Iterable[str] | Mapping[str, Any]
"""Changes of a recipe: texts `section.key=value`, or {"section.key": value}."""

TABLE_FILES = ("nodes", "edges", "train_ids", "val_ids", "test_ids")
"""Options of [tables] that are paths."""

TABLE_SUFFIXES = {".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc"}
"""Suffixes of files that contain a table and therefore not a recipe."""


class Recipe(Section):
    """Everything that a run depends on, except the seed."""

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
    ensemble: EnsembleOptions = EnsembleOptions()

    def __init__(self, **values: Any) -> None:
        if "\0" in f"{values.get('name', '')}{values.get('about', '')}":
            raise RecipeError("name or about of the recipe contains a NUL character; remove it")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise RecipeError("\n".join(problems_in_words(error.errors(), DECLARED))) from error

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Recipe:
        """Check the values of a recipe; pydantic would wrap the error that `__init__` raises."""
        return cls(**obj) if isinstance(obj, dict) else super().model_validate(obj, **options)

    @property
    def is_of_own_data(self) -> bool:
        """Whether the task is a file or tables of the user, rather than a task with a name.

        A bundled or published task that was passed as an object is stored as a file, but keeps its
        name.
        """
        is_file = self.task.name == "tables" or self.task.name.endswith(DATA_SUFFIXES)
        return is_file and self.name not in (*BUNDLED, *OGB)

    @property
    def folder_name(self) -> str:
        """The name of a run folder for this recipe, without path separators."""
        letters = (c if c.isprintable() and c not in "/\\" else "-" for c in self.name[:100])
        return "".join(letters).strip(". ") or "run"

    def with_task(self, path: Path) -> Recipe:
        """This recipe for the task in an `.npz` file or a store."""
        return self.with_options("task", name=str(path.resolve()))

    def with_regime(self, regime: Regime) -> Recipe:
        """This recipe with one batch regime."""
        return self.with_options("batch", regime=regime)

    def with_options(self, section: str, **values: Any) -> Recipe:
        """This recipe with values of one section that are known to be valid."""
        options = getattr(self, section).model_copy(update=values)
        return self.model_copy(update={section: options})

    def with_absolute_paths(self) -> Recipe:
        """This recipe with absolute paths, so that it means the same from any folder."""
        paths = {
            key: str(Path(value).resolve())
            for key, value in (("name", self.task.name), ("bundle", self.task.bundle))
            if value.endswith(DATA_SUFFIXES)
        }
        return self.with_options("task", **paths).with_paths_in(Path.cwd())

    def with_paths_in(self, folder: Path) -> Recipe:
        """This recipe with relative paths of tables and of a teacher resolved against a folder."""
        named = {key: getattr(self.tables, key) for key in TABLE_FILES}
        paths = {key: str(folder.resolve() / path) for key, path in named.items() if path}
        recipe = self.with_options("tables", **paths) if paths else self
        if not self.train.teacher:
            return recipe
        return recipe.with_options("train", teacher=str((folder / self.train.teacher).resolve()))

    def with_settings(self, settings: Settings) -> Recipe:
        """This recipe with settings applied: `section.key=value`, or {"section.key": value}.

        A value in a text is parsed as TOML; a value in a dictionary is used as it is.
        """
        values = self.model_dump(exclude_unset=True)  # remembers which options were set
        for name, value in read_settings(settings):
            section, _, key = name.partition(".")
            values.setdefault(section, {})[key] = value
        return _validate(values)

    def settings(self) -> dict[str, Any]:
        """Every option and its value: {"section.key": value}."""
        values = self.model_dump(exclude={"name", "about"})
        return {f"{name}.{key}": value for name in values for key, value in values[name].items()}

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump())


SECTIONS = tuple(key for key in Recipe.model_fields if key not in ("name", "about"))


def options() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every option: its section, its key, and the field that declares it."""
    for section in SECTIONS:
        kind = Recipe.model_fields[section].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, Section)
        for key, declared in kind.model_fields.items():
            yield section, key, declared


DECLARED = {f"{section}.{key}": declared for section, key, declared in options()}
"""The declaration of every option by its full name."""


def recipe_names() -> list[str]:
    """The names of the recipes in the package."""
    files = (entry.name for entry in _recipe_folder().iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


@checked
def load_recipe(name: FilePath, settings: Settings = ()) -> Recipe:
    """Read a recipe by name or path; the name of a task gives the default recipe for it."""
    path = Path(name)
    names = recipe_names()
    if str(name) in names:
        text = (_recipe_folder() / f"{name}.toml").read_text(encoding="utf-8")
        recipe = read_recipe(text, str(name))
    elif path.suffix == ".toml":
        recipe = _read_recipe_file(path)
    elif path.suffix in DATA_SUFFIXES or str(name) in task_names():
        recipe = Recipe(name=path.stem, task=TaskOptions(name=str(name)))
    else:
        raise RecipeError(_no_recipe(path, [*names, *task_names()]))
    return recipe.with_settings(settings)


def _read_recipe_file(path: Path) -> Recipe:
    try:
        with open_input(path) as file:
            text = read_opened(file, path, MOST_BYTES).decode("utf-8-sig")  # some begin with a BOM
    except FileNotFoundError:
        raise RecipeError(
            f"there is no recipe file {path}; `unimp init NODES EDGES` writes one for two tables"
        ) from None
    except OSError as error:
        raise RecipeError(
            f"the recipe {path} cannot be read: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error
    recipe = read_recipe(text, path.stem, path).with_paths_in(path.parent)
    if "name" not in recipe.task.model_fields_set:
        raise RecipeError(
            f'recipe {path} does not name a task; add [task] with name = "debian" (or another '
            "task, see `unimp data list`), or [tables] with nodes and edges"
        )
    beside = path.parent / recipe.task.name  # as a run stores its task
    is_beside = recipe.task.name.endswith(DATA_SUFFIXES) and beside.exists()
    return recipe.with_task(beside) if is_beside else recipe


def read_recipe(text: str, name: str, path: Path | None = None) -> Recipe:
    """Parse a recipe's TOML; `name` is used if the recipe does not contain a name.

    A recipe of tables called `recipe` or `tables`, as `unimp init` and `unimp train` write it, is
    named after its nodes. Error messages refer to the recipe by `path`.
    """
    called = path or name
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number with thousands of digits
        raise RecipeError(
            f"recipe {called} is not valid TOML: {error}; lines are [section] or key = value"
        ) from error
    problems = []
    for section, given in values.items():
        if section in ("name", "about"):
            continue
        if section not in SECTIONS:
            problems.append(
                f"recipe {called}: there is no section [{section}]; "
                f"{nearest_names(section, SECTIONS)}"
            )
        elif not isinstance(given, dict):
            problems.append(
                f"recipe {called}: {section} = {given!r} is not a section; write [{section}] on "
                "its own line and its options below"
            )
        else:
            unknown = [f"{section}.{key}" for key in given if f"{section}.{key}" not in DECLARED]
            problems += [_no_option(option) for option in unknown]
    if problems:
        raise RecipeError("\n".join(problems))
    if nodes := values.get("tables", {}).get("nodes"):  # a recipe with tables is about them
        values["task"] = {"name": "tables", **values.get("task", {})}
        if name in ("recipe", Path(GUESSED).stem):
            name = _name_of(Path(str(nodes))) or name
    return _validate({"name": name, **values})


def _name_of(nodes: Path) -> str:
    """The name of tables: of the file, or of the last folder of a pattern such as nodes/*.csv."""
    named = [part for part in nodes.parts if not set(part) & set("*?[]")]
    return Path(named[-1]).name.partition(".")[0] if named else ""


_HOW_TO_SET = 'give {"train.epochs": 50}, or a list of texts such as "train.epochs=50"'


def read_settings(settings: Settings) -> Iterator[tuple[str, Any]]:
    """The full name of the option and the value of each setting."""
    if isinstance(settings, str):
        settings = (settings,)
    if not isinstance(settings, Iterable) or getattr(settings, "ndim", 1) == 0:
        raise RecipeError(f"settings are {settings!r}; {_HOW_TO_SET}")
    pairs: Iterable[tuple[str, Any]]
    if isinstance(settings, Mapping):
        # Search libraries give numpy's numbers, and tuples.
        pairs = ((name, _plain(value)) for name, value in settings.items())
    else:
        pairs = map(_parse_setting, settings)
    for name, value in pairs:
        if name not in DECLARED:
            raise RecipeError(_no_option(str(name)))
        yield name, value


def _parse_setting(setting: str) -> tuple[str, Any]:
    if not isinstance(setting, str):
        raise RecipeError(f"{setting!r} is not a setting; {_HOW_TO_SET}")
    name, equals, text = (part.strip() for part in setting.partition("="))
    if not equals:
        raise RecipeError(f"{setting!r} is not a setting; write section.key=value")
    try:
        return name, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return name, text  # a bare word is a text, so that quotes are not needed


def _plain(value: Any) -> Any:
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _no_option(name: str) -> str:
    return f"there is no option {name!r}; {nearest_names(name, DECLARED)}"


def _no_recipe(path: Path, known: Iterable[str]) -> str:
    """The message for a name that is not a recipe; a table or a folder is a likely mistake."""
    if path.is_dir():
        stored = path / "recipe.toml"
        return f"{path} is a folder; " + (
            f"its recipe is {stored}"
            if stored.is_file()
            else "`unimp init NODES EDGES` writes a recipe for two tables"
        )
    if is_table(path):
        return f"{path} is a table; `unimp init NODES EDGES` writes a recipe for two tables"
    return f"there is no recipe or task {str(path)!r}; {nearest_names(str(path), known)}"


def is_table(path: Path) -> bool:
    """Whether a file contains a table and therefore not a recipe, by its suffix."""
    return bool({suffix.lower() for suffix in path.suffixes} & TABLE_SUFFIXES)


def _recipe_folder() -> Any:
    return resources.files("unimp.config") / "recipes"


def _validate(values: dict[str, Any]) -> Recipe:
    recipe = Recipe(**values)
    _check_tables(recipe)
    _check_members(recipe)
    _check_teacher(recipe)
    return recipe


def _check_members(recipe: Recipe) -> None:
    if recipe.ensemble.members and recipe.ensemble.portfolio == "none":
        raise RecipeError(
            "ensemble.members names members, but ensemble.portfolio is none; set "
            "ensemble.portfolio=best, or leave out the members"
        )


def _check_teacher(recipe: Recipe) -> None:
    if bool(recipe.train.teacher) != bool(recipe.train.teacher_sha256):
        raise RecipeError(
            "train.teacher and train.teacher_sha256 name one run together, but one of them is "
            "empty; `unimp distill RUN --out FOLDER` sets both"
        )
    if recipe.train.teacher and recipe.ensemble.portfolio != "none":
        raise RecipeError(
            f"ensemble.portfolio is {recipe.ensemble.portfolio!r}, but only a single model can "
            "learn from train.teacher; set ensemble.portfolio=none, or leave out the teacher"
        )


def _check_tables(recipe: Recipe) -> None:
    """Refuse options of tables that no task would use, and tables beside another task."""
    task, tables = recipe.task.name, recipe.tables
    if not tables.nodes:
        given = tables.model_dump(exclude_unset=True)
        used = {key: value for key, value in given.items() if value != getattr(_NO_TABLES, key)}
        if used or ("tables" in recipe.model_fields_set and "nodes" not in given):
            keys = f"sets {', '.join(used)}, but not nodes" if used else "is empty"
            raise RecipeError(
                f"[tables] of recipe {recipe.name!r} {keys}; set tables.nodes and tables.edges "
                " to the paths of two files, or remove [tables]"
            )
    elif not (task == "tables" or task.endswith(DATA_SUFFIXES)):
        raise RecipeError(
            f'task.name is {task!r}, but [tables] names files too; set task.name = "tables", or '
            "remove [tables]"
        )


_NO_TABLES = TablesOptions()
