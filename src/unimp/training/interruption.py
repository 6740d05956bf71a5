"""Stop on Ctrl-C (SIGINT) or SIGTERM without losing what was trained.

`signals_raised` turns both signals into exceptions: the command line runs inside it. `signals_held`
makes them wait until a checkpoint is written or a lock is complete. The module imports nothing
slow, because the command line needs it before any other module is loaded.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HAS_TIMER = hasattr(signal, "setitimer")  # not on Windows
CHECK_SECONDS = 0.05
"""Seconds after a signal at which the timer checks whether its exception is being handled."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received; SIGINT raises KeyboardInterrupt itself."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a process that a signal stopped: 128 + the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT and `Terminated` on SIGTERM, in the main thread.

    Such an exception can be lost. Python ignores exceptions in the callbacks of weak references,
    and every import runs such a callback. Some libraries catch and ignore all exceptions. A timer
    therefore sends the signal again if the exception was lost and the block continues. Windows has
    no such timer. If the block ends normally after a signal, the signal is sent again at its end.
    """
    raised = RaisedSignals()
    before, hook = handle_signals(raised.on_signal), sys.unraisablehook

    def on_ignored(ignored: sys.UnraisableHookArgs) -> None:
        if not raised.contains(ignored.exc_value):
            hook(ignored)

    if before:
        sys.unraisablehook = on_ignored
    lost = None
    try:
        yield
        lost = raised.newest
    finally:
        raised.end()
        if before:
            sys.unraisablehook = hook
        restore_handlers(before)
    if lost is not None:
        signal.raise_signal(exit_code(lost) - 128)


class RaisedSignals:
    """Raises signals as exceptions, and sends a signal again if its exception was lost."""

    def __init__(self) -> None:
        self._raised: list[KeyboardInterrupt] = []  # other code may raise KeyboardInterrupt
        self._timer_before: Any = None  # the handler of SIGALRM before the first signal
        self._ended = False

    @property
    def newest(self) -> KeyboardInterrupt | None:
        return self._raised[-1] if self._raised else None

    def contains(self, error: BaseException | None) -> bool:
        """Whether this object raised the exception."""
        return any(error is one for one in self._raised)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if HAS_TIMER:
            if not self._raised:
                self._timer_before = signal.signal(signal.SIGALRM, self._on_timer)
            signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS)
        stop = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        self._raised.append(stop)
        raise stop

    def _on_timer(self, number: int, frame: FrameType | None) -> None:
        if self._ended or self.newest is None:
            return
        if self._is_handled():
            signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS)
        else:
            signal.raise_signal(exit_code(self.newest) - 128)

    def _is_handled(self) -> bool:
        """Whether an `except`, `finally` or `with` block handles one of the exceptions now.

        While frames are left, generators are closed. Their cleanup must not be interrupted either.
        """
        found = sys.exception()
        while not (found is None or self.contains(found) or isinstance(found, GeneratorExit)):
            found = found.__context__
        return found is not None

    def end(self) -> None:
        """Stop the timer."""
        self._ended = True  # a signal of the timer may arrive until its handler is restored
        if HAS_TIMER and self._raised:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._timer_before or signal.SIG_DFL)


@contextmanager
def signals_held(report: Callable[[str], None] = lambda text: None) -> Iterator[Interruption]:
    """Make signals wait inside the block; a signal that still waits at its end is delivered."""
    interruption = Interruption(report)
    interruption.hold()
    try:
        yield interruption
    finally:
        interruption.release()
        if interruption.requested is not None:
            signal.raise_signal(interruption.requested)


class Interruption:
    """A request to stop that waits until `deliver` is called.

    The first signal waits; a second one is delivered at once. A delivered signal does what it would
    have done without this class: the previous handler receives it.
    """

    def __init__(self, report: Callable[[str], None] = lambda text: None) -> None:
        self.requested: int | None = None  # the number of the signal that waits
        self._report = report
        self._before: dict[int, Any] = {}

    def hold(self) -> None:
        self._before = handle_signals(self._on_signal)

    def release(self) -> None:
        restore_handlers(self._before)
        self._before = {}

    def deliver(self) -> None:
        """Deliver the signal that waits, if there is one."""
        if self.requested is None:
            return
        number, self.requested = self.requested, None
        self.release()
        signal.raise_signal(number)
        self.hold()  # the previous handler returned, so training continues

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            self.deliver()
        else:
            self.requested = number
            self._report("stopping after this step and saving; a second Ctrl-C stops at once")


def handle_signals(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Install a handler for SIGNALS and return the previous ones.

    A signal that is ignored stays ignored, and so does one whose handler was not installed from
    Python. Only the main thread may install handlers; in any other thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    before = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    return before


def restore_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
