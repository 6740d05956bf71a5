"""Signals: raised as exceptions, or held until they are delivered."""

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from unimp.training.interruption import Terminated, exit_code, signals_held, signals_raised


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """As in a terminal: the background jobs of a shell start with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_raised(), signals_held() as interruption:
        send(signal.SIGINT)
        assert interruption.requested is None


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
