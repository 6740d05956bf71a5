"""`python -m unimp.serving.engine.auditor RUN [WEIGHTS]`: the audit, in a process of its own.

An audit computes for many seconds, and all its rows must belong to one version. In the process of
the engine it would delay the events that arrive meanwhile. This process loads the run, applies the
events that are stored, writes one message with the doubtful labels at this version, and ends. It
has a low priority and stores no projections, so it needs less memory than the engine.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch

from unimp.errors import UnimpError
from unimp.serving.engine.applied import Applied
from unimp.serving.engine.estimate import check_memory
from unimp.serving.engine.process import (
    end_with_front,
    load_with_split,
    lower_priority,
    own_stdout,
)
from unimp.serving.engine.questions import Questions
from unimp.serving.reader import Reader
from unimp.serving.wire import Message, send

NICENESS = 10


def main() -> None:
    """Write the audit to stdout; end early if stdin ends."""
    end_with_front()
    out = own_stdout()
    lower_priority(NICENESS)
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    folder, *more = map(Path, sys.argv[1:])
    with Reader(folder) as reader:
        try:
            run, _ = load_with_split(folder, more[0] if more else None)
            check_memory(run)
            applied = Applied(run, reader, hold_projections=False)
            applied.apply()
            found = Message({"version": applied.version, **Questions(applied).audit()})
        except UnimpError as error:
            found = Message({"refused": str(error)})
        send(out, found)


def _end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
