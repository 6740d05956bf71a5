"""One process of several: python joined_process.py TIMEOUT RANK_THAT_COMPUTES SECONDS

One process computes for some time without a break, while the others wait for it.
"""

import sys
import time

from unimp.errors import RanksError
from unimp.training.ranks import join_ranks

timeout, computing, seconds = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
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
