"""Being told to stop by a signal: raised, so that everything is closed on the way out.

Next to nothing is imported here: it is needed before the command line is there.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SOON = 0.02
"""Seconds until a signal that came in an import is tried again."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised as Ctrl-C is."""


def imports_under_way(frame: FrameType | None) -> int:
    """How many calls of Python's import are at work in a frame.

    An import that is broken off leaves a library half there, and whoever asks for it next fails in
    odd ways; some libraries also catch whatever is raised while they try what is installed.
    """
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith("<frozen importlib")
        frame = frame.f_back
    return count


@contextmanager
def stops_raised(*signals: int) -> Iterator[None]:
    """Within, SIGINT raises KeyboardInterrupt and SIGTERM `Terminated`, once no import is at work.

    A signal that is ignored stays so.
    """
    before = {number: signal.getsignal(number) for number in signals}
    if threading.current_thread() is not threading.main_thread():
        before = {}  # only the main thread may decide about signals
    outside = imports_under_way(sys._getframe())
    waiting: set[int] = set()

    def stop(number: int, frame: FrameType | None) -> None:
        if imports_under_way(frame) > outside:
            if number not in waiting:
                waiting.add(number)
                _again_soon(number, waiting)
            return
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    taken = {n: was for n, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, was in taken.items():
            signal.signal(number, was)


def _again_soon(number: int, waiting: set[int]) -> None:
    def again() -> None:
        waiting.discard(number)
        signal.raise_signal(number)

    timer = threading.Timer(SOON, again)
    timer.daemon = True
    timer.start()
