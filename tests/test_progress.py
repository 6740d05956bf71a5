"""The live line: what it shows on a terminal, and that it is silent elsewhere."""

import io
import sys
from types import SimpleNamespace

import pytest

from unimp.progress import clock, memory, shown_progress, time_left
from unimp.recipe import Recipe
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


def test_in_a_pipe_lines_are_plain_and_few_if_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    now = 0.0
    monkeypatch.setattr(
        "unimp.progress.time", SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
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
