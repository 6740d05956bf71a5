"""Shared by the benchmarks: graphs with the size of a data set, timing, and stored figures."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.graph.csr import group, index_dtype
from unimp.graph.hop import Hop
from unimp.tracking.origin import code_origin

FOLDER = Path(__file__).parent / "results"


def hop_of_size(
    num_nodes: int, num_edges: int, *, edge_features: int = 0, skew: float = 1.5, device: str
) -> Hop:
    """A square hop with a few hubs and many nodes of low degree, in random order.

    Both ends of each edge are drawn with P(rank r) ∝ r^(1/skew − 1): for skew = 1.5, half of all
    edges meet an eighth of the nodes at either end. skew = 1 draws nodes evenly.
    """
    generator = torch.Generator(device).manual_seed(0)
    order = torch.randperm(num_nodes, generator=generator, device=device)

    def ends() -> Tensor:
        rank = torch.rand(num_edges, generator=generator, device=device, dtype=torch.float64)
        return order[(rank**skew * num_nodes).long().clamp_(max=num_nodes - 1)]

    dtype = index_dtype(num_edges)
    indptr, slots = group(ends().to(dtype), num_nodes)
    source = ends().to(dtype)[slots.long()]
    attr = None
    if edge_features:
        attr = torch.rand(num_edges, edge_features, generator=generator, device=device)
    return Hop(indptr, source, num_nodes, attr)


def edge_index_of(hop: Hop) -> Tensor:
    """The edges in the format of PyG."""
    return torch.stack((hop.source.long(), hop.target.long()))


def seconds(
    calls: Mapping[str, Callable[[], Any]],
    *,
    repeats: int,
    device: str,
    settle: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median time of each call. One round calls each once, so that all see the same noise.

    With `settle`, each is called once more just before, so that none pays for memory that the
    previous call returned to the system.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            if settle:
                call()
            wait(device)
            began = clock()
            call()
            wait(device)
            if turn:  # the first round warms up
                taken[name].append(clock() - began)
    return {name: statistics.median(times) for name, times in taken.items()}


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def gpu_gib(call: Callable[[], Any]) -> float:
    """Peak GPU memory of a call, minus the memory in use before it, in GiB."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def cpu_gib(call: Callable[[], Any]) -> float:
    """Peak memory of a call, minus the peak of the process before it, in GiB; on Linux."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmHWM")
    call()
    return (_resident("VmHWM") - before) / 2**20


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


class Figures:
    """Named figures, printed as they are measured and stored with hardware, command and code."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.json"
        self.found: dict[str, Any] = (
            json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        )

    def add(self, name: str, value: float, what: str, aim: str = "") -> None:
        print(f"figure {name} {value:.4g}", flush=True)
        self.found[name] = {"value": float(f"{value:.4g}"), "what": what, "aim": aim} | place()
        write_atomically(self.path, (json.dumps(self.found, indent=1) + "\n").encode())


def cpu_name() -> str:
    """The kind of CPU, such as "x86_64 (AMD EPYC, family 26, AVX512)"."""
    cpuinfo, found = Path("/proc/cpuinfo"), {}
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    parts = [found["model name"]] if "model name" in found else []
    parts += [f"family {found['cpu family']}"] if "cpu family" in found else []
    return f"{platform.machine()} ({', '.join([*parts, torch.backends.cpu.get_cpu_capability()])})"


def place() -> dict[str, Any]:
    """The command, hardware and code of a measurement."""
    cores = f"{cpu_name()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores"
    words = re.sub(r"--out[ =]\S+ ?", "", shlex.join(sys.argv[1:]))
    return {
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {words}".strip(),
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else cores,
        "torch": torch.__version__,
        "unimp": __version__,
        "code": code_origin(),
    }
