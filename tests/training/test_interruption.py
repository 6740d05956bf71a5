"""Signals: raised as exceptions, or held until they are delivered."""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from unimp.training.interruption import Terminated, exit_code, signals_held, signals_raised


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, Terminated, 143)],
)
def test_signals_are_raised_inside_the_block_and_handlers_are_restored(
    number: int, error: type[KeyboardInterrupt], code: int
) -> None:
    before = signal.getsignal(number)
    with pytest.raises(error) as stop, signals_raised():
        send(number)
    assert type(stop.value) is error
    assert exit_code(stop.value) == code
    assert signal.getsignal(number) is before


def test_a_held_signal_waits_and_a_second_one_does_not() -> None:
    with signals_held() as interruption:
        send(signal.SIGINT)
        assert interruption.requested == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_signal_that_still_waits_is_delivered_at_the_end_of_the_block() -> None:
    continued: list[None] = []
    with pytest.raises(KeyboardInterrupt), signals_held():
        continued.append(send(signal.SIGINT))
    assert continued


def test_a_signal_that_waits_is_delivered_after_an_error() -> None:
    def fail() -> None:
        with suppress(ValueError), signals_held():
            send(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        fail()


def test_held_blocks_nest() -> None:
    with signals_held() as outer:
        with signals_held() as inner:
            send(signal.SIGINT)
            assert (outer.requested, inner.requested) == (None, signal.SIGINT)
        assert outer.requested == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            outer.deliver()


def test_a_delivered_signal_reaches_the_previous_handler() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with signals_held() as interruption:
            send(signal.SIGTERM)
            assert received == []
            interruption.deliver()
            assert received == [signal.SIGTERM]
            assert interruption.requested is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_raised(), signals_held() as interruption:
            send(signal.SIGINT)
            assert interruption.requested is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handlers_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with signals_raised(), signals_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_python_ignores_is_sent_again(number: int) -> None:
    """Exceptions in the callback of a weak reference are ignored, and each import has one."""
    hook = sys.unraisablehook
    values = [{1, 2}]
    reference = weakref.ref(values[0], lambda _: signal.raise_signal(number))

    def remove_and_wait() -> None:
        values.clear()
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt) as stop, signals_raised():
        remove_and_wait()
    assert reference() is None
    assert exit_code(stop.value) == 128 + number
    assert sys.unraisablehook is hook


def test_a_signal_whose_exception_a_library_ignores_is_sent_again() -> None:
    def ignore_exceptions_and_wait() -> None:
        with suppress(BaseException):
            send(signal.SIGTERM)
        time.sleep(60)

    before = time.monotonic()
    with pytest.raises(Terminated), signals_raised():
        ignore_exceptions_and_wait()
    assert time.monotonic() - before < 30


def test_a_lost_signal_that_is_sent_again_waits_while_signals_are_held() -> None:
    waited: list[None] = []

    def lose_and_hold() -> None:
        with suppress(BaseException):
            send(signal.SIGTERM)
        with signals_held() as interruption:
            while interruption.requested is None:
                time.sleep(0.01)
            time.sleep(0.2)  # a second signal would not wait
            waited.append(None)

    with pytest.raises(Terminated), signals_raised():
        lose_and_hold()
    assert waited


def test_a_signal_that_was_lost_at_the_end_of_a_block_is_sent_again_after_it() -> None:
    def lose() -> None:
        with signals_raised(), suppress(BaseException):
            send(signal.SIGTERM)

    with pytest.raises(Terminated), signals_raised():
        lose()


@pytest.mark.parametrize("kind", ["finally", "with", "generator", "a second signal"])
def test_cleaning_up_after_a_signal_is_not_interrupted(kind: str) -> None:
    cleaned: list[None] = []

    def clean() -> None:
        time.sleep(0.3)
        cleaned.append(None)

    def cleans_when_closed() -> Iterator[None]:
        try:
            yield
        finally:
            clean()

    def stop_and_clean() -> None:
        if kind == "with":
            with ExitStack() as stack:
                stack.callback(clean)
                send(signal.SIGTERM)
        elif kind == "generator":
            for _ in cleans_when_closed():
                send(signal.SIGTERM)
        else:
            try:
                send(signal.SIGTERM)
            finally:
                with suppress(KeyboardInterrupt):
                    if kind == "a second signal":
                        send(signal.SIGINT)
                clean()

    with pytest.raises(Terminated), signals_raised():
        stop_and_clean()
    assert cleaned


def test_no_timer_is_left_after_a_signal() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(Terminated), signals_raised():
        send(signal.SIGTERM)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_other_ignored_exceptions_are_reported_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: seen.append(ignored.exc_type))
    value = {1, 2}
    reference = weakref.ref(value, lambda _: {}["missing"])
    with signals_raised():
        del value
    assert reference() is None
    assert seen == [KeyError]


def test_an_ignored_interruption_that_is_not_a_signal_does_not_stop_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: seen.append(ignored.exc_type))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    value = {1, 2}
    reference = weakref.ref(value, interrupt)
    with signals_raised():
        del value
        time.sleep(0.2)
    assert reference() is None
    assert seen == [KeyboardInterrupt]
