"""One process of several: python joined_process.py TIMEOUT RANK_THAT_COMPUTES SECONDS

One process computes for some seconds without calling torch, while the other waits for it. If
INIT_METHOD is set, torch joins the processes first, as a launcher would. If LATE is set, the
last `wait` of this process returns that many seconds late.
"""

import os
import sys
import time
from typing import Any

from torch import distributed

from unimp.errors import RanksError
from unimp.training.ranks import join_ranks


class Late:
    """A store that answers `wait` late."""

    def __init__(self, store: Any, seconds: float) -> None:
        self.store, self.seconds = store, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def wait(self, *given: Any) -> None:
        time.sleep(self.seconds)
        self.store.wait(*given)


timeout, computing, seconds = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
if method := os.environ.get("INIT_METHOD"):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=size)
ranks = join_ranks("cpu", timeout)
try:
    assert ranks.agreed("started" if ranks.is_first else None) == "started"
    print("started", flush=True)
    if ranks.rank == computing:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
    assert ranks.agreed("computed" if ranks.is_first else None) == "computed"
    if late := float(os.environ.get("LATE", "0")):
        ranks._heartbeat._store = Late(ranks._heartbeat._store, late)  # type: ignore[attr-defined]
    ranks.wait()
except RanksError as error:
    print(error)
    sys.exit(3)
if method:
    distributed.destroy_process_group()
