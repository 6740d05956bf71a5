"""How processes that were started together find each other."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from torch import distributed
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from unimp.training.started import RENDEZVOUS

LOOK_AGAIN = 0.1
"""Seconds between two checks whether the other processes have started."""


class Rendezvous:
    """The store by which the processes of one attempt find each other.

    torchrun keeps its store when it starts processes again. Keys of earlier attempts must not be
    used, so all keys of an attempt begin with its name.
    """

    def __init__(self, rank: int, size: int, limit: timedelta) -> None:
        self._rank, self._size, self._limit = rank, size, limit
        # If the processes have already joined a group of torch, they use its store.
        self._given = _get_default_store() if distributed.is_initialized() else None
        # Kept, because the first process may host the store, which ends with its last connection.
        self._first = self._connect()
        self._attempt = agreed_name(self._first, rank, size, limit)

    def store(self, purpose: str) -> Any:
        """The part of the store for one purpose.

        It has its own connection, because a connection answers one call at a time.
        """
        return _part(f"{self._attempt}/{purpose}", self._connect())

    def _connect(self) -> Any:
        if self._given is not None:
            # Older versions of torch have no `clone`; one connection is then used for everything.
            clone = getattr(self._given, "clone", None)
            return _part("unimp", self._given if clone is None else clone())
        place = os.environ.get(RENDEZVOUS)
        where = "env://" if place is None else f"file://{place}"
        store, _, _ = next(rendezvous(where, self._rank, self._size, timeout=self._limit))
        store.set_timeout(self._limit)  # a store in a file ignores `timeout`
        return _part("unimp", store)


def agreed_name(store: Any, rank: int, size: int, limit: timedelta) -> str:
    """A name that the processes of this attempt agree on, and that no earlier attempt has used.

    Each process draws a random name, and the others answer the first one with theirs. When all have
    answered, the first process publishes the answers, and each of the other processes confirms that
    its own name is among them. The name of the first process is then the name of the attempt. If a
    process was killed after its answer, the process that replaces it also answers. The first
    process therefore reads the answers again until every published name is confirmed. The number of
    restarts cannot be used, because torchrun counts restarts on each machine separately.
    """
    own, until = uuid4().hex, time.monotonic() + limit.total_seconds()
    soon = timedelta(seconds=LOOK_AGAIN)
    if rank == 0:
        answers = [f"{own}/{other}" for other in range(1, size)]
        store.set("first", own)
        store.wait(answers, limit)
        while time.monotonic() < until:
            names = [store.get(answer).decode() for answer in answers]
            store.set(f"{own}/all", " ".join(names))
            with suppress(RuntimeError):  # not all have found their names yet
                store.wait([f"{own}/seen/{name}" for name in names], soon)
                return own
    else:
        while time.monotonic() < until:
            first: str = store.get("first").decode()  # possibly that of an earlier attempt
            store.set(f"{first}/{rank}", own)
            with suppress(RuntimeError):  # not all have answered yet
                store.wait([f"{first}/all"], soon)
                if own in store.get(f"{first}/all").decode().split():
                    store.set(f"{first}/seen/{own}", "1")
                    return first
                time.sleep(LOOK_AGAIN)
    raise RuntimeError("the processes did not find each other")


def _part(name: str, store: Any) -> Any:
    """A view of the store in which every key begins with a name."""
    return distributed.PrefixStore(name, store)  # type: ignore[attr-defined]
