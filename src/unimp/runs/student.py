"""Distillation: train one UniMP on the answers of a finished run, as an ordinary run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unimp.config.arguments import FilePath
from unimp.config.recipe import Recipe, Settings
from unimp.ensemble.portfolio import PORTFOLIO, member_recipe, settings_of
from unimp.ensemble.student import best_unimp
from unimp.runs.context import Experiment
from unimp.runs.experiment import run_seed
from unimp.runs.folder.files import read_run, stored_task
from unimp.runs.loading import load_run
from unimp.runs.preparation import device_of, task_of
from unimp.runs.recipes import resolve_recipe
from unimp.runs.run import Run
from unimp.runs.teacher import answers_hash
from unimp.tasks.task import Task

LENGTH = ("train.epochs", "train.eval_from", "train.patience", "train.time_limit")
"""Options about the length of training, which a refit or a time limit changed for a member."""


def distill(
    teacher: FilePath,
    *,
    out: FilePath | None = None,
    seed: int | None = None,
    settings: Settings = (),
    progress: bool | None = None,
) -> Run:
    """Train one UniMP on the answers of the finished run in the folder `teacher`.

    The student is stored in the folder `out` as an ordinary run, which does not need its teacher.
    seed: None: that of the teacher; the split is always that of the teacher. settings: changes of
    the student's recipe. An interrupted student resumes; a finished one is loaded.
    """
    folder = Path(teacher).resolve()
    student = resolve_recipe(student_recipe(folder), settings)
    number = read_run(folder)[2]["seed"] if seed is None else seed
    experiment = Experiment(
        student,
        number,
        device_of(student, None),
        None if out is None else Path(out),
        own_task=stored_by_teacher(folder),
        show=progress,
    )
    experiment.found()
    return run_seed(experiment)


def student_recipe(folder: Path) -> Recipe:
    """The recipe of a student: the task of its teacher, and the options of its best UniMP."""
    teacher = load_run(folder, device="cpu")
    recipe = teacher.recipe
    settings = {
        **_best_unimp(teacher),
        "task.split": teacher.seed if recipe.task.split == "seed" else recipe.task.split,
        # The student stores the features that its teacher uses.
        "task.features": "" if stored_task(recipe) else recipe.task.features,
        "train.teacher": str(folder),
        "train.teacher_sha256": answers_hash(folder),
    }
    student = member_recipe(recipe, "student", settings)
    if student.is_of_own_data != recipe.is_of_own_data:  # its name decides this
        student = student.model_copy(update={"name": recipe.name})
    about = f"One UniMP that learned from the answers of the run {folder.name}."
    return student.model_copy(update={"about": about})


def _best_unimp(teacher: Run) -> dict[str, Any]:
    """The settings of the UniMP with the best validation score among the members of a teacher.

    Without one, those of the member `unimp` of the portfolio.
    """
    member = next(member for member in PORTFOLIO if member.name == "unimp")
    usual, found = settings_of(member, teacher.task), best_unimp(teacher.metrics)
    if found is None:
        return usual
    options = {name: value for name, value in found["settings"].items() if name not in LENGTH}
    length = {name: usual[name] for name in LENGTH if name in usual}
    # A teacher's answers take longer to learn than labels; at first, the score may not change.
    length["train.patience"] = 2 * max(
        usual["train.patience"], found["settings"].get("train.patience", 0)
    )
    return {**options, **length}


def stored_by_teacher(folder: Path) -> Task | None:
    """The task that a teacher stores, not yet prepared, so that the student stores it too."""
    recipe, _, manifest = read_run(folder)
    if not stored_task(recipe):
        return None
    plain = {"scale_rows": False, "symmetrize": False, "self_loops": False, "structure": False}
    return task_of(recipe.with_options("task", **plain), manifest["seed"])
