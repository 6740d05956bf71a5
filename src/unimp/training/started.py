"""How this process was started; this module does not import torch."""

from __future__ import annotations

import os

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""The variables that torchrun sets in each process."""
RENDEZVOUS = "UNIMP_RENDEZVOUS"
"""The variable with a file by which processes of one machine find each other; otherwise, torchrun
names an address."""


def were_started() -> bool:
    """Whether torchrun or the option --devices started this process."""
    return all(name in os.environ for name in ENVIRONMENT)
