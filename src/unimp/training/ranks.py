"""Several processes that train one model together.

Each process has a rank. All of them derive the same mask and the same batch from (seed, epoch,
step); each computes the gradient of its part of the seeds, the gradients are added, and all take
the same optimizer step. Only the first process, rank 0, scores the model and writes files.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from unimp.errors import RanksError, RecipeError, TrainingError
from unimp.model.node_model import NodeModel
from unimp.training.heartbeat import Heartbeat
from unimp.training.rendezvous import Rendezvous
from unimp.training.started import were_started

LONGEST_PAUSE = 1.0
"""The most seconds between two messages by which processes notice that another one was stopped or
lost. A tenth of the time limit is used if it is shorter."""


class Ranks:
    """The processes that train one model; this base class represents a single process."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def deal(self, rows: Tensor) -> Tensor:
        """The rows of this process; all processes get about the same number."""
        return rows[self.rank :: self.size]

    def add(self, values: Tensor) -> Tensor:
        """The sum of the values of all processes, in place."""
        return values

    def of_first(self, data: bytes, *, soon: bool = False) -> bytes:
        """The data of the first process; `soon`: all processes call it at about the same time."""
        return data

    def agreed(self, value: Any, *, soon: bool = False) -> Any:
        """The value of the first process, such as a score; it must be possible to write as JSON."""
        if self.size == 1:
            return value
        data = json.dumps(value).encode() if self.is_first else b""
        return json.loads(self.of_first(data, soon=soon))

    def are_equal(self, number: int) -> bool:
        """Whether all processes have the same number; they wait for each other."""
        return True

    def wait(self) -> None:
        """Return when all processes have called it."""

    def on_one_machine(self) -> bool:
        """Whether all processes run on one machine: it has one name, and was started once."""
        started = Path("/proc/sys/kernel/random/boot_id")
        boot = started.read_bytes() if started.exists() else b""
        return self.are_equal(zlib.crc32(socket.gethostname().encode() + boot))

    def add_gradients(
        self, parameters: Sequence[Tensor], loss: Tensor | None, count: Tensor
    ) -> Tensor:
        """Replace gradients by their weighted mean over all processes; return that of the loss.

            gradient = Σ_r count_r · gradient_r / Σ_r count_r

        A process without a hidden label has no loss and a count of 0. A parameter without a
        gradient in any process keeps none.
        """
        like = parameters[0]
        counts = count.to(like.device, like.dtype).reshape(1)
        own = torch.zeros_like(counts) if loss is None else loss.detach().to(like.dtype) * counts
        has = torch.tensor([p.grad is not None for p in parameters]).to(like.device, like.dtype)
        rows = [
            (torch.zeros_like(p) if p.grad is None else p.grad * counts).flatten()
            for p in parameters
        ]
        flat = self.add(torch.cat((counts, own.reshape(1), has, *rows)))
        count, loss, has = flat[0], flat[1] / flat[0], flat[2 : 2 + len(parameters)]
        pieces = torch.split(flat[2 + len(parameters) :], [p.numel() for p in parameters])
        for p, piece, of_any in zip(parameters, pieces, has.tolist(), strict=True):
            p.grad = (piece / count).view_as(p) if of_any else None
        return loss

    def check_weights(self, model: NodeModel) -> None:
        """Refuse to continue if the processes have different weights."""
        if self.size == 1:
            return
        code = 0
        for values in model.state_dict().values():
            code = zlib.crc32(values.detach().cpu().contiguous().numpy().tobytes(), code)
        if not self.are_equal(code):
            raise TrainingError(
                "the processes have different weights; they need the same data, the same recipe "
                "and the same version of torch"
            )


ALONE = Ranks()
"""Training with a single process."""


class Joined(Ranks):
    """Processes that torchrun, or the option --devices, has started."""

    def __init__(self, backend: str, timeout: float) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.timeout, limit = timeout, timedelta(seconds=timeout)
        with self._heard("start"):
            found = Rendezvous(self.rank, self.size, limit)
            if not distributed.is_initialized():
                distributed.init_process_group(
                    backend,
                    store=found.store("torch"),
                    timeout=limit,
                    rank=self.rank,
                    world_size=self.size,
                )
                atexit.register(distributed.destroy_process_group)
            # Values are exchanged on CPU, whatever the model is on.
            self._group = distributed.new_group(timeout=limit, backend="gloo")
            of_threads = distributed.new_group(timeout=limit, backend="gloo")
            self._heartbeat = Heartbeat(
                lambda: distributed.barrier(group=of_threads),
                found.store("meetings"),
                self.size,
                pause=min(LONGEST_PAUSE, timeout / 10),
            )

    def add(self, values: Tensor) -> Tensor:
        with self._heard("add gradients"):
            distributed.all_reduce(values, group=None if values.is_cuda else self._group)
        return values

    def of_first(self, data: bytes, *, soon: bool = False) -> bytes:
        with self._heard("share a value"):
            if not soon:
                self._meet()
            length = torch.tensor([len(data)])
            distributed.broadcast(length, 0, group=self._group)
            values = torch.zeros(int(length) + 1, dtype=torch.uint8)  # at least one byte
            if self.is_first:
                values[:-1] = torch.frombuffer(bytearray(data or b" "), dtype=torch.uint8)[
                    : len(data)
                ]
            distributed.broadcast(values, 0, group=self._group)
        return values[:-1].numpy().tobytes()

    def are_equal(self, number: int) -> bool:
        ends = torch.tensor([number, -number])
        with self._heard("compare numbers"):
            distributed.all_reduce(ends, distributed.ReduceOp.MAX, group=self._group)
        return int(ends[0]) == -int(ends[1])

    def wait(self) -> None:
        with self._heard("wait for the others"):
            self._meet()

    def _meet(self) -> None:
        """Wait for the others as long as they run, which may be longer than the time limit."""
        self._heartbeat.meet()
        # The first process may host the store. It must not end before all have left the meeting.
        distributed.barrier(group=self._group)

    @contextmanager
    def _heard(self, purpose: str) -> Iterator[None]:
        """Explain an error of torch: another process ended, or does not answer."""
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            raise RanksError(
                f"process {self.rank} of {self.size} could not {purpose}: another process ended "
                "or did not answer in time. Start the command again. A training resumes from its "
                "last checkpoint."
            ) from error


def use_own_gpu(device: str) -> None:
    """Select the GPU of this process, GPU `LOCAL_RANK` of its machine, unless the device is cpu."""
    if device == "cpu" or not (were_started() and torch.cuda.is_available()):
        return
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise RecipeError(
            f"process {number} of this machine has no GPU, because the machine has {count}; start "
            f"at most {count} processes on it, or use the CPU: set train.device=cpu to train, and "
            "the environment variable CUDA_VISIBLE_DEVICES to an empty string to predict"
        )
    if device not in ("auto", "cuda", f"cuda:{number}"):
        raise RecipeError(
            f"train.device is {device!r}, but each of several processes uses its own GPU; set "
            "train.device=cuda"
        )
    torch.cuda.set_device(number)


_joined: list[Joined] = []


def join_ranks(device: str, timeout: float) -> Ranks:
    """The processes that were started together with this one; `ALONE` without others."""
    if not were_started():
        return ALONE
    if not _joined:
        backend = "nccl" if device.startswith("cuda") else "gloo"
        _joined.append(Joined(backend, timeout))
    return _joined[0]
