"""The command `unimp` and `python -m unimp`.

Ctrl-C or SIGTERM may arrive before the command line is loaded, so this module imports nearly
nothing itself.
"""

import codecs
import os
import sys
from types import FrameType

from unimp.training.interruption import handle_signals


def program() -> None:
    """Run the command line and end the process.

    Until a command runs there is nothing to clean up, so a signal ends the process at once. An
    exception instead could leave a library half imported, or be caught by it.
    """
    open_streams()
    handle_signals(end_at_once)
    # Threads of OpenMP that wait for work sleep; it must be set before torch is loaded. Spinning
    # threads would take the cores from other processes: two commands at once would take many times
    # as long as one after the other.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from unimp.cli import program as command_line

    command_line()


def end_at_once(number: int, frame: FrameType | None) -> None:
    print("stopped", file=sys.stderr, flush=True)
    os._exit(128 + number)


def open_streams() -> None:
    """Make sure that printing never fails.

    Output to a closed stream is discarded, and characters that a stream cannot encode are escaped.
    Closed streams are opened in order, so that no other file takes one of their numbers.
    """
    codecs.register_error("escaped", escaped)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        elif mode == "w" and getattr(stream, "errors", "") in ("strict", "surrogateescape"):
            stream.reconfigure(errors="escaped")


def escaped(error: UnicodeError) -> tuple[str, int]:
    """Write characters that an encoding lacks as JSON does, so that printed JSON stays valid."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


if __name__ == "__main__":
    program()
