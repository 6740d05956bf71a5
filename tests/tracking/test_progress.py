"""The live line: what it shows on a terminal, and that it is silent elsewhere."""

import io
import sys
from types import SimpleNamespace

import pytest

from unimp.config.recipe import Recipe
from unimp.tracking.progress import clock, memory, shown_progress, time_left
from unimp.training.loop import Epoch

RECIPE = Recipe(name="cora").with_settings(["train.epochs=40"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    *epochs: Epoch, columns: int = 100, term: str = "xterm", wanted: bool | None = None
) -> str:
    """What a terminal in place of stderr receives while these epochs pass."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", term)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stderr", screen)
        with shown_progress(RECIPE, 3, wanted) as progress:
            for epoch in epochs:
                progress.on_epoch(epoch)
    return screen.getvalue()


def test_a_terminal_shows_epoch_loss_score_time_and_memory() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75, "test": 0.5}))
    assert "cora seed 3: epoch 1/40  loss 1.2500  val 0.7500  " in text
    assert " left  " in text
    assert "GiB of " in text
    assert "test" not in text


def test_the_last_score_stays_while_epochs_are_not_scored() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), Epoch(2, 1.125, 0.5))
    assert "epoch 2/40  loss 1.1250  val 0.7500" in text


def test_a_task_without_validation_nodes_shows_no_score() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"test": 0.5}))
    assert "loss 1.2500  " in text
    assert "val" not in text


def test_a_narrow_terminal_gets_one_line_still() -> None:
    text = shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), columns=40)
    assert "cora seed 3: epoch 1/40  loss 1.2500  v…" in text
    assert "GiB" not in text


def test_a_terminal_that_cannot_redraw_stays_silent() -> None:
    assert shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), term="dumb") == ""


def test_nothing_is_printed_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with shown_progress(RECIPE, 0) as progress:
        progress.on_epoch(Epoch(1, 1.25, 0.5, {"val": 0.75}))
        progress.note("going on")
    assert capsys.readouterr() == ("", "")


def epochs_of_lines(
    epochs: int, seconds: float, capsys: pytest.CaptureFixture[str], *, limit: float = 0.0
) -> list[int]:
    """The epochs of which a run in a pipe prints a line, if each takes so long."""
    recipe = RECIPE.with_settings({"train.epochs": epochs, "train.time_limit": limit})
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        clock = SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
        patch.setattr("unimp.tracking.progress.time", clock)
        with shown_progress(recipe, 0, True) as progress:
            for number in range(1, epochs + 1):
                now += seconds
                if limit and now > limit:
                    break
                progress.on_epoch(Epoch(number, 1.25, seconds))
    lines = capsys.readouterr().err.splitlines()
    return [int(line.split("epoch ")[1].split("/")[0]) for line in lines]


def test_in_a_pipe_each_tenth_of_a_run_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert epochs_of_lines(600, 0.05, capsys) == list(range(60, 601, 60))


def test_in_a_pipe_a_run_of_a_moment_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert epochs_of_lines(5, 0.1, capsys) == []


def test_in_a_pipe_a_long_run_is_told_of_soon_and_some_twenty_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = epochs_of_lines(2000, 10.0, capsys)
    assert told[0] == 3
    assert 15 < len(told) <= 21


def test_in_a_pipe_a_run_with_a_time_limit_is_told_of_by_its_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = epochs_of_lines(10_000, 1.0, capsys, limit=100.0)
    assert len(told) == 10
    assert told[0] == 10


def test_in_a_pipe_lines_are_plain_and_few_if_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    now = 0.0
    monkeypatch.setattr(
        "unimp.tracking.progress.time",
        SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now),
    )
    with shown_progress(RECIPE, 0, True) as progress:
        for number in range(1, 11):
            now += 10.0
            progress.on_epoch(Epoch(number, 1.25, 10.0, {"val": 0.75}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0] for line in lines] == [
        f"cora seed 0: epoch {number}" for number in (3, 6, 9)
    ]
    assert "loss 1.2500  val 0.7500  5:10 left" in lines[-1]


def test_a_line_that_nobody_wants_is_not_drawn() -> None:
    assert shown(Epoch(1, 1.25, 0.5, {"val": 0.75}), wanted=False) == ""


def test_time_left_counts_only_the_epochs_of_this_process() -> None:
    text = shown(Epoch(31, 1.25, 2.0))
    assert "epoch 31/40  loss 1.2500  0:18 left" in text


def test_time_left_goes_by_the_pace_so_far() -> None:
    assert time_left(10, 20.0, 40, 0.0) == 60.0
    assert time_left(40, 80.0, 40, 0.0) == 0.0


def test_a_time_limit_ends_training_sooner() -> None:
    assert time_left(10, 20.0, 40, 50.0) == 30.0
    assert time_left(10, 20.0, 40, 15.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0:00"), (65, "1:05"), (59.6, "1:00"), (7384, "2:03:04")]
)
def test_time_is_told_as_a_clock_does(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_memory_in_use_is_more_than_nothing() -> None:
    assert float(memory().split()[0]) > 0
