"""The command `unimp`, and `python -m unimp`: the command line, and a clean end from the start on.

Ctrl-C may come before the command line is imported: so next to nothing is imported here.
"""

import codecs
import os
import signal
import sys
from types import FrameType

from unimp.cli.stopping import imports_under_way


def program() -> None:
    """Run the command line, which ends the process; Ctrl-C at any moment is told in one line."""
    try:
        open_streams()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, on_interrupt)
        from unimp.cli import program as command_line

        command_line()
    except KeyboardInterrupt:
        end()


def open_streams() -> None:
    """Let everything be printed: nowhere, if a stream is closed, and escaped, what it cannot say.

    Closed ones are opened in order, so that no file of ours is taken for one of them.
    """
    codecs.register_error("escaped", escaped)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif mode == "w" and getattr(stream, "errors", "") in ("strict", "surrogateescape"):
            stream.reconfigure(errors="escaped")


def escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks, as JSON writes them, so that JSON stays what it says."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


def on_interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C in an import ends the process at once; anywhere else it raises, as it always does.

    A command that has something to clean up takes over: `stops_raised`.
    """
    if imports_under_way(frame):
        end()
    raise KeyboardInterrupt


def end() -> None:
    print("stopped", file=sys.stderr, flush=True)
    os._exit(130)


if __name__ == "__main__":
    program()
