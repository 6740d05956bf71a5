"""Being asked to stop: a signal waits until what was learned is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """The signals that ask this process to stop, held back until `deliver`.

    The first one waits; a second one is not made to wait. Delivered, a signal does what it would
    have done at once: Ctrl-C raises KeyboardInterrupt, and whoever handles a signal otherwise does.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.asked: int | None = None
        self._say = say
        self._before: dict[int, Any] = {}

    def hold(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may decide about signals
        for number in SIGNALS:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # None: not Python's to put back
                self._before[number] = before
                signal.signal(number, self._on_signal)

    def release(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def deliver(self) -> None:
        """Let the signal that waits do its work; nothing, if none does."""
        if self.asked is None:
            return
        number, self.asked = self.asked, None
        self.release()
        signal.raise_signal(number)
        self.hold()  # whoever handled it lets us go on

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            return self.deliver()
        self.asked = number
        self._say("stopping after this step, to keep what was learned; once more stops at once")
        return None


@contextmanager
def signals_held(say: Callable[[str], None] = lambda text: None) -> Iterator[Interruption]:
    """Within, signals wait to be asked for; at the end one that still waits is delivered."""
    interruption = Interruption(say)
    interruption.hold()
    try:
        yield interruption
    finally:
        interruption.release()
    if interruption.asked is not None:
        signal.raise_signal(interruption.asked)
