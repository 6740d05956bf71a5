"""Studies by name, and the one function that runs them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from unimp.errors import UnimpError, nearest_names
from unimp.studies.cells import Cell, Subject, refuse_settings_not_kept, subject_of
from unimp.studies.drawing import draw
from unimp.studies.execution import Ended, Hashes, Job, found, train_all
from unimp.studies.figures import FIGURE_A, FIGURE_B
from unimp.studies.inference_figures import FIGURE_C, FIGURE_D
from unimp.studies.information import INFORMATION
from unimp.studies.margin import MARGIN
from unimp.studies.pages import provenance, write_pages
from unimp.studies.study import Outcome, Study, score_text
from unimp.studies.tables import INPUTS, LAYER, RESULTS
from unimp.training.loop import Epoch

STUDIES = {
    study.name: study
    for study in (
        INFORMATION,
        RESULTS,
        INPUTS,
        LAYER,
        FIGURE_A,
        FIGURE_B,
        FIGURE_C,
        FIGURE_D,
        MARGIN,
    )
}
EVERY = "all"


def nothing() -> None:
    """What a process needs before it trains, where it needs nothing."""


def find_studies(names: Iterable[str]) -> list[Study]:
    """Studies by name or by their place in the paper (table-7); `all` is every one."""
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


def listing() -> list[tuple[str, str, str]]:
    """Every study: its name, its place in the paper, and what it is about."""
    return [(study.name, study.place, study.title) for study in STUDIES.values()]


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
    prepare_process: Callable[[], object] = nothing,
) -> list[Path]:
    """Run studies on a task and write a page for each; the pages, in the order they were done.

    Cells that are in their folders are used as they are. A cell that fails is told on its study's
    page, and the rest goes on; at the end that is an error.
    """
    studies = find_studies(names)
    if jobs < 1:
        raise UnimpError(f"--jobs {jobs}: at least one process is needed")
    subject = subject_of(task, seeds=seeds, out=out, settings=settings, quick=quick)
    state = Progress(subject, studies)
    refuse_settings_not_kept(settings, subject, state.cells)
    make_writable(subject.place)
    hashes = Hashes()
    # Every folder is looked at before anything is trained: all is refused now, or nothing later.
    # Seed by seed, as that is how few tasks are loaded.
    for job in sorted(state.jobs(), key=lambda job: job.seed):
        ended = found(job, hashes)
        if ended is not None:
            state.note(ended)
    missing = [job for job in state.jobs() if not state.has(job)]
    there = state.total - len(missing)
    epochs = f"{subject.recipe.train.epochs} epochs each for a quick look, " if quick else ""
    say(f"{subject.name}: {state.total} runs, {epochs}{there} of them there already")
    pages = state.conclude_whole(say)
    with live_line(state) as (on_epoch, watched):
        ending = train_all(
            missing, processes=jobs, on_epoch=on_epoch, prepare_process=prepare_process
        )
        for ended in ending:
            state.note(ended)
            state.trained += 1
            if ended.failure or not watched:
                say(f"{state.trained}/{len(missing)} {in_words(ended)}")
            pages += state.conclude_whole(say)
    if state.problems:
        count = len(state.problems)
        raise UnimpError(
            f"{count} {'thing' if count == 1 else 'things'} went wrong, the rest is written:\n  "
            + "\n  ".join(state.problems)
        )
    return pages


def make_writable(place: Path) -> None:
    """Make the folder of the runs, or refuse: what is trained for hours must have a place."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnimpError(
            f"cannot make the folder {place}: {error.strerror}; choose another --out"
        ) from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise UnimpError(f"cannot write into {place}; choose another --out, or make it writable")


def in_words(ended: Ended) -> str:
    if ended.failure:
        return f"{ended.job.name} failed: {ended.failure}"
    scores = ended.metrics["scores"]["train"]
    text = ", ".join(
        f"{part} {score_text({} if value is None else {0: value})}"
        for part, value in scores.items()
    )
    return f"{ended.job.name}: {text}, {ended.metrics['seconds']:.0f} s"


@dataclass
class Progress:
    """Which cells of which studies are done, and what they came to."""

    subject: Subject
    studies: list[Study]
    trained: int = 0
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells: dict[str, list[Cell]] = {
            study.name: list(study.cells(self.subject)) for study in self.studies
        }
        every = {cell.name: cell for cells in self.cells.values() for cell in cells}
        self.outcomes = {name: Outcome(cell) for name, cell in every.items()}
        self.waiting = list(self.studies)
        self.total = sum(1 for _ in self.jobs())

    def jobs(self) -> Iterator[Job]:
        """Every seed of every cell that the task can have, each once."""
        for outcome in self.outcomes.values():
            if not outcome.cell.unfit:
                for seed in self.subject.seeds:
                    folder = outcome.cell.folder(self.subject.place, seed)
                    yield Job(outcome.cell, seed, folder)

    def has(self, job: Job) -> bool:
        outcome = self.outcomes[job.cell.name]
        return job.seed in outcome.metrics or job.seed in outcome.failures

    def note(self, ended: Ended) -> None:
        outcome, seed = self.outcomes[ended.job.cell.name], ended.job.seed
        if ended.failure:
            outcome.failures[seed] = ended.failure
            self.problems.append(f"{ended.job.name}: {ended.failure}")
            return
        outcome.metrics[seed] = ended.metrics
        outcome.manifests[seed] = ended.manifest

    def is_whole(self, study: Study) -> bool:
        names = {cell.name for cell in self.cells[study.name]}
        return all(self.has(job) for job in self.jobs() if job.cell.name in names)

    def conclude_whole(self, say: Callable[[str], None]) -> list[Path]:
        """Write the pages of the studies whose last cell is done."""
        pages = []
        for study in [s for s in self.waiting if self.is_whole(s)]:
            self.waiting.remove(study)
            try:
                pages.append(self.conclude(study))
            except Exception as error:  # whatever it is: the other studies go on
                self.problems.append(f"{study.name}: {error}")
                say(f"{study.name} failed: {error}")
            else:
                say(f"{study.name}: {pages[-1]}")
        return pages

    def conclude(self, study: Study) -> Path:
        """Write what a study found; the path of its page."""
        own = {cell.name: self.outcomes[cell.name] for cell in self.cells[study.name]}
        findings = study.conclude(self.subject, own)
        made = provenance(study, self.subject, own, findings)
        page = self.subject.place / f"{study.name}.md"
        drawing, figure = None, findings.figure
        if figure is not None and any(p.y for s in figure.series for p in s.points):
            drawing = draw(study, findings, made, page)
        write_pages(study, own, findings, made, page, drawing)
        return page


@contextmanager
def live_line(state: Progress) -> Iterator[tuple[Callable[[Job, Epoch], None], bool]]:
    """A line that is redrawn in a terminal, and whether there is one; elsewhere nothing."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda job, epoch: None, False
        return
    now, begun = "", time.perf_counter()
    missing = sum(1 for job in state.jobs() if not state.has(job))

    def line() -> Text:
        spent = time.perf_counter() - begun
        left = "" if not state.trained else f", about {_minutes(spent, state.trained, missing)}"
        text = f"{state.subject.name}: {state.trained} of {missing} runs trained{left}{now}"
        return Text(text, no_wrap=True, overflow="ellipsis")

    def on_epoch(job: Job, epoch: Epoch) -> None:
        nonlocal now
        now = f"; {job.name}, epoch {epoch.epoch} of {job.cell.recipe.train.epochs}"

    with Live(get_renderable=line, console=console, transient=True, refresh_per_second=4):
        yield on_epoch, True


def _minutes(spent: float, done: int, missing: int) -> str:
    return f"{max(1, round(spent / done * (missing - done) / 60))} min left"
