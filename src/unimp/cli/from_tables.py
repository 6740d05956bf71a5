"""The form `unimp train NODES EDGES`: from tables to predictions in one command."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.cli.console import out
from unimp.cli.init import GuessedRecipe, checked_tables, guess_recipe, print_guess
from unimp.cli.later import inputs_in_words, predictions_in_words
from unimp.config.input_files import MOST_BYTES
from unimp.config.recipe import TABLE_SUFFIXES, is_table
from unimp.config.run_files import GUESSED, LABELED, REPORT, seed_folders
from unimp.errors import OutputError, RecipeError, RunError, TaskError

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe
    from unimp.runs.seeds import Runs


@dataclass(frozen=True)
class TrainingTables:
    """The tables that a command trains on, and what their columns were guessed to mean."""

    nodes: Path
    edges: Path | None
    guessed: GuessedRecipe

    @property
    def recipe(self) -> Recipe:
        """The guessed recipe."""
        from unimp.config.recipe import read_recipe

        here = Path.cwd()
        return read_recipe(self.guessed.text(here), Path(GUESSED).stem).with_paths_in(here)

    def check(self, recipe: Recipe, seed: int) -> None:
        """Print what was guessed and how the tables are read; refuse what cannot be trained."""
        print_guess(self.guessed.found, self.nodes, self.edges)
        checked_tables(recipe, seed)

    def unfinished_folder(self, parent: Path, recipe: Recipe, seeds: list[int]) -> Path | None:
        """The newest folder in which this command was killed before its end, if any.

        `interrupted_folder` finds a run with a checkpoint. This function also finds a run that has
        none yet, and a finished run without predictions.
        """
        from unimp.runs.folder.lock import in_use
        from unimp.runs.folder.resume import find_run

        started = sorted(parent.glob(f"*/{GUESSED}"), key=lambda path: path.stat().st_mtime_ns)
        for folder in (path.parent for path in reversed(started)):
            if not self._is_stored(folder):
                continue
            places = seed_folders(folder, seeds)
            with suppress(RunError):  # another run
                for seed, place in places.items():
                    find_run(place, recipe, seed)
                labeled = all((place / LABELED).exists() for place in places.values())
                if not labeled and not in_use(folder):
                    return folder
        return None

    def store_recipe(self, folder: Path, recipe: Recipe, seeds: list[int]) -> None:
        """Write the guessed recipe into the folder of its run, unless another run is there."""
        from unimp.data.files import write_atomically
        from unimp.runs.folder.resume import find_run

        for seed, place in seed_folders(folder, seeds).items():
            find_run(place, recipe, seed)
        path = folder / GUESSED
        if not (path.exists() or path.is_symlink()):
            write_atomically(path, self.guessed.text(folder).encode())
        elif not self._is_stored(folder):
            raise OutputError(
                f"{path} exists already and differs from the recipe that was guessed now. To train "
                f"it as it is, run: unimp train {path}; or choose another folder with --out"
            )

    def _is_stored(self, folder: Path) -> bool:
        """Whether a folder contains exactly the recipe that was guessed now."""
        from unimp.data.files import read_regular

        text = self.guessed.text(folder).encode()
        with suppress(OSError):  # not a regular file, or much larger
            return read_regular(folder / GUESSED, MOST_BYTES) == text
        return False

    def write_predictions(self, runs: Runs) -> None:
        """Write the predictions of each run, and print where everything is."""
        assert runs.folder is not None
        out.print(
            f"recipe: {runs.folder / GUESSED} (without options of --set; edit it, then run unimp "
            "train with this file)"
        )
        for run in runs:
            assert run.folder is not None
            words = ""
            if not (run.folder / LABELED).exists():
                table = run.predictions()
                table.write(run.folder / LABELED)
                words = predictions_in_words(run, table)
            out.print(f"report: {run.folder / REPORT}")
            inputs = inputs_in_words(run, None, run.default_reveal)
            out.print(f"predictions: {run.folder / LABELED} ({inputs})")
            if words:
                out.print(words)


def tables_in(names: Sequence[str], label: str, near: str) -> TrainingTables | None:
    """The tables that the arguments of `unimp train` name; None for a recipe or a task."""
    paths = [Path(name) for name in names]
    if not is_table(paths[0]) or paths[0].is_dir():
        if len(paths) > 1:
            raise RecipeError(
                f"{' '.join(names)}: give one recipe or task, or a table of nodes and a table of "
                f"edges. {names[0]} is not a table, because its name does not contain one of these "
                f"endings: {', '.join(sorted(TABLE_SUFFIXES))}"
            )
        for option, given in (("label", label), ("near", near)):
            if given:
                raise RecipeError(
                    f"--{option} describes tables, but {names[0]} is a recipe or a task. Use "
                    f"--set tables.{option}=… for a recipe of tables."
                )
        return None
    if len(paths) > 2:
        raise RecipeError(f"{len(paths)} tables are given; give one of nodes and one of edges")
    nodes, edges = paths[0], paths[1] if len(paths) > 1 else None
    guessed = guess_recipe(nodes, edges, label, near)
    if not guessed.found.layout.label:
        raise TaskError(
            "the label column could not be guessed. Name it: "
            f"unimp train {' '.join(names)} {guessed.found.label_options}"
        )
    return TrainingTables(nodes, edges, guessed)
