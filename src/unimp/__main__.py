"""The command `unimp`, and `python -m unimp`: the command line, and a clean end from the start on.

Ctrl-C may come before the command line is imported: so next to nothing is imported here.
"""

import os
import signal
import sys
from types import FrameType


def program() -> None:
    """Run the command line, which ends the process; Ctrl-C at any moment is told in one line."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, on_interrupt)
        from unimp.cli import program as command_line

        command_line()
    except KeyboardInterrupt:
        end()


def on_interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C in an import ends the process at once; anywhere else it raises, as it always does.

    An import that is broken off leaves a library half there, and whoever asks for it next fails in
    odd ways.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            end()
        frame = frame.f_back
    raise KeyboardInterrupt


def end() -> None:
    print("stopped", file=sys.stderr, flush=True)
    os._exit(130)


if __name__ == "__main__":
    program()
