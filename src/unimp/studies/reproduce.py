"""The list of studies, and the function that runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unimp.errors import UnimpError, nearest_names
from unimp.studies.cells import Subject, refuse_overwritten_settings, subject_of
from unimp.studies.execution import Ended, Hashes, Job, find_finished, train_all
from unimp.studies.figures import figure_a, figure_b, figure_c, figure_d
from unimp.studies.information import information
from unimp.studies.margin import margin
from unimp.studies.pages import write_study
from unimp.studies.study import Outcome, Study
from unimp.studies.tables import inputs, layer, results
from unimp.tasks.means import mean_text
from unimp.training.loop import Epoch

_PAPER = (information, results, inputs, layer, figure_a, figure_b, figure_c, figure_d, margin)
STUDIES = {study.name: study for study in _PAPER}
EVERY = "all"


def find_studies(names: Iterable[str]) -> list[Study]:
    """Studies by name or by their place in the paper (table-7); `all` selects every study."""
    known = {name: study for study in STUDIES.values() for name in (study.name, *study.also)}
    chosen: dict[str, Study] = {}
    for name in names:
        if name == EVERY:
            chosen |= STUDIES
        elif name in known:
            chosen[known[name].name] = known[name]
        else:
            raise UnimpError(f"no study {name!r}; {nearest_names(name, [*known, EVERY])}")
    if not chosen:
        raise UnimpError(f"name a study: {', '.join(STUDIES)}, or {EVERY}")
    return list(chosen.values())


def reproduce(
    names: Sequence[str],
    *,
    task: str,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    out: Path = Path("runs/reproduce"),
    jobs: int = 1,
    quick: bool = False,
    say: Callable[[str], None] = print,
    prepare_process: Callable[[], object] = lambda: None,
) -> list[Path]:
    """Run studies on a task and write a page for each; return the pages in that order.

    Finished runs in the folders of cells are used as they are. If a cell fails, the page of its
    study states it and the other cells continue; an error follows at the end.
    """
    studies = find_studies(names)
    if jobs < 1:
        raise UnimpError(f"--jobs {jobs} is too small. Use at least one process.")
    subject = subject_of(task, seeds=seeds, out=out, settings=settings, quick=quick)
    state = State(subject, studies)
    refuse_overwritten_settings(settings, subject, state.cells)
    make_writable(subject.place)
    hashes = Hashes()
    # Check every folder before training, so that a conflict is found now and not hours later. In
    # the order of seeds, because that loads the fewest tasks.
    for job in sorted(state.jobs, key=lambda job: job.seed):
        ended = find_finished(job, hashes)
        if ended is not None:
            state.add(ended)
    missing, total = state.missing, len(state.jobs)
    epochs = f" with {subject.recipe.train.epochs} epochs each" if quick else ""
    say(f"{subject.name}: {total} runs{epochs}, {total - len(missing)} of them finished already")
    pages = state.write_complete(say)
    with progress_bar() as bar:
        line = bar.add_task(subject.name, total=len(missing), now="")

        def on_epoch(job: Job, epoch: Epoch) -> None:
            epochs = job.cell.recipe.train.epochs
            bar.update(line, now=f"{job.name}, epoch {epoch.epoch} of {epochs}")

        ending = train_all(
            missing, processes=jobs, on_epoch=on_epoch, prepare_process=prepare_process
        )
        for number, ended in enumerate(ending, 1):
            state.add(ended)
            bar.advance(line)
            if ended.failure or bar.disable:
                say(f"{number}/{len(missing)} {in_words(ended)}")
            pages += state.write_complete(say)
    if state.problems:
        several = "problems" if len(state.problems) > 1 else "problem"
        found = "\n  ".join([f"{several}; everything else is written:", *state.problems])
        raise UnimpError(f"{len(state.problems)} {found}")
    return pages


def make_writable(place: Path) -> None:
    """Create the folder of the runs, or refuse before anything is trained for it."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnimpError(
            f"cannot create the folder {place}: {error.strerror}. Choose another --out."
        ) from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise UnimpError(f"cannot write into {place}. Choose another --out, or make it writable.")


def in_words(ended: Ended) -> str:
    if ended.failure:
        return f"{ended.job.name} failed: {ended.failure}"
    scores = ended.metrics["scores"]["train"].items()
    text = ", ".join(f"{p} {mean_text([] if v is None else [v])}" for p, v in scores)
    return f"{ended.job.name}: {text}, {ended.metrics['seconds']:.0f} s"


def progress_bar() -> Progress:
    """Runs trained, time left and the current epoch, in a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal or console.is_dumb_terminal,
    )


class State:
    """The outcomes of the cells so far, and the studies that wait for more."""

    def __init__(self, subject: Subject, studies: Sequence[Study]) -> None:
        self.subject, self.waiting = subject, list(studies)
        self.problems: list[str] = []
        self.cells = {study.name: list(study.cells(subject)) for study in studies}
        every = {cell.name: cell for cells in self.cells.values() for cell in cells}
        self.outcomes = {name: Outcome(cell) for name, cell in every.items()}
        self.jobs = [  # every seed of every cell that can run on the task, each once
            Job(cell, seed, cell.folder(subject.place, seed))
            for cell in every.values()
            for seed in subject.seeds
            if not cell.unfit
        ]

    @property
    def missing(self) -> list[Job]:
        """The jobs that have not ended."""
        ended = {n: {*one.metrics, *one.failures} for n, one in self.outcomes.items()}
        return [job for job in self.jobs if job.seed not in ended[job.cell.name]]

    def add(self, ended: Ended) -> None:
        outcome, seed = self.outcomes[ended.job.cell.name], ended.job.seed
        if ended.failure:
            outcome.failures[seed] = ended.failure
            self.problems.append(f"{ended.job.name}: {ended.failure}")
        else:
            outcome.metrics[seed] = ended.metrics
            outcome.manifests[seed] = ended.manifest

    def write_complete(self, say: Callable[[str], None]) -> list[Path]:
        """Write the studies whose last cell has ended; return their pages."""
        pages = []
        missing = {job.cell.name for job in self.missing}
        for study in list(self.waiting):
            own = {cell.name: self.outcomes[cell.name] for cell in self.cells[study.name]}
            if missing & own.keys():
                continue
            self.waiting.remove(study)
            try:
                findings = study.conclude(self.subject, own)
                page = write_study(study, self.subject, own, findings, self.subject.place)
            except Exception as error:  # any failure: the other studies continue
                self.problems.append(f"{study.name}: {error}")
                say(f"{study.name} failed: {error}")
            else:
                pages.append(page)
                say(f"{study.name}: {page}")
        return pages
