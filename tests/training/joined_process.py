"""One process of several: python joined_process.py TIMEOUT RANK_THAT_COMPUTES SECONDS

One process computes for some seconds without calling torch, while the other waits for it. If
INIT_METHOD is set, torch joins the processes first, as a launcher would.
"""

import os
import sys
import time

from torch import distributed

from unimp.errors import RanksError
from unimp.training.ranks import join_ranks

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
    ranks.wait()
except RanksError as error:
    print(error)
    sys.exit(3)
if method:
    distributed.destroy_process_group()
