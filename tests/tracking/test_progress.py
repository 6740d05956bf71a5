"""Progress: a live bar on a terminal, plain lines on request, and nothing elsewhere."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from unimp.config.recipe import Recipe
from unimp.tracking.progress import Progress, memory, show_progress, time_left
from unimp.training.loop import Epoch

RECIPE = Recipe(name="cora").with_settings(["train.epochs=40"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    *epochs: Epoch, columns: int = 80, term: str = "xterm", wanted: bool | None = None
) -> str:
    """What a terminal receives on stderr during these epochs."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", term)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stderr", screen)
        with show_progress(RECIPE, 3, wanted) as progress:
            for epoch in epochs:
                progress.epoch(epoch)
    return screen.getvalue()


def test_a_terminal_shows_epoch_loss_score_time_and_memory() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75, "test": 0.5}))
    assert "cora seed 3" in text
    assert "1/40" in text
    assert "loss 1.2500  val 0.7500  0:00:" in text
    assert " left  " in text
    assert "GiB" in text
    assert "test" not in text


def test_the_last_score_stays_while_epochs_are_not_scored() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), Epoch(2, 1.125, 0.5))
    assert "loss 1.1250  val 0.7500" in text


def test_a_task_without_validation_nodes_shows_no_score() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"test": 0.5}))
    assert "loss 1.2500  " in text
    assert "val" not in text


def test_a_narrow_terminal_shows_one_line() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), columns=50)
    assert "…" in text
    assert "GiB" not in text
    assert text.count("\n") == 1  # at the very end, before the line is erased


def test_a_terminal_that_cannot_redraw_stays_silent() -> None:
    assert shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), term="dumb") == ""


def test_nothing_is_printed_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with show_progress(RECIPE, 0) as progress:
        progress.epoch(Epoch(1, 1.25, 0.5, {"val": 0.75}))
        progress.note("resuming")
    assert capsys.readouterr() == ("", "")


def epochs_of_lines(
    epochs: int, seconds: float, capsys: pytest.CaptureFixture[str], *, limit: float = 0.0
) -> list[int]:
    """The epochs for which a run in a pipe prints a line, if each takes so many seconds."""
    recipe = RECIPE.with_settings({"train.epochs": epochs, "train.time_limit": limit})
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        clock = SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
        patch.setattr("unimp.tracking.progress.time", clock)
        with show_progress(recipe, 0, True) as progress:
            for number in range(1, epochs + 1):
                now += seconds
                if limit and now > limit:
                    break
                progress.epoch(Epoch(number, 1.25, seconds))
    lines = capsys.readouterr().err.splitlines()
    return [int(line.split("epoch ")[1].split("/")[0]) for line in lines]


def test_in_a_pipe_each_tenth_of_a_run_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert epochs_of_lines(600, 0.05, capsys) == list(range(60, 601, 60))


def test_in_a_pipe_a_very_short_run_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert epochs_of_lines(5, 0.1, capsys) == []


def test_in_a_pipe_a_long_run_prints_its_first_line_after_half_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = epochs_of_lines(2000, 10.0, capsys)
    assert lines[:2] == [3, 203]
    assert len(lines) == 10


def test_in_a_pipe_a_run_with_a_time_limit_prints_a_line_per_tenth_of_its_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = epochs_of_lines(10_000, 1.0, capsys, limit=100.0)
    assert lines == list(range(10, 101, 10))


def test_in_a_pipe_lines_are_plain_and_few_if_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    now = 0.0
    monkeypatch.setattr(
        "unimp.tracking.progress.time",
        SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now),
    )
    with show_progress(RECIPE, 0, True) as progress:
        for number in range(1, 11):
            now += 15.0
            progress.epoch(Epoch(number, 1.25, 15.0, {"val": 0.75}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0] for line in lines] == [
        f"cora seed 0: epoch {number}" for number in (2, 6, 10)
    ]
    assert "loss 1.2500  val 0.7500  0:07:30 left" in lines[-1]


def test_nothing_is_drawn_if_progress_is_not_wanted() -> None:
    assert shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), wanted=False) == ""


def test_time_left_counts_only_the_epochs_of_this_process() -> None:
    text = shown(Epoch(31, 1.25, 2.0))
    assert "31/40" in text
    assert "loss 1.2500  0:00:18 left" in text


def test_time_left_follows_the_pace_so_far() -> None:
    assert time_left(10, 20.0, 40, 0.0) == 60.0
    assert time_left(40, 80.0, 40, 0.0) == 0.0


def test_time_left_respects_a_time_limit() -> None:
    assert time_left(10, 20.0, 40, 50.0) == 30.0
    assert time_left(10, 20.0, 40, 15.0) == 0.0


@pytest.mark.parametrize(("widgets", "plain"), [(None, True), (object(), False)])
def test_a_notebook_without_widgets_prints_plain_lines(
    widgets: object, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("unimp.tracking.progress.find_spec", lambda name: widgets)
    bars: list[object] = []

    @contextmanager
    def bar(status: object, console: object) -> Iterator[Progress]:
        bars.append(status)
        yield Progress()

    monkeypatch.setattr("unimp.tracking.progress._live_bar", bar)
    with show_progress(RECIPE, 0) as progress:
        assert progress.is_visible == plain
    assert bool(bars) != plain


def test_memory_in_use_is_more_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # a GPU may be unused
    assert float(memory().split()[0]) > 0
