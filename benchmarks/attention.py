"""Compare graph attention with PyG's layer and with the time of reading its rows.

    python benchmarks/attention.py                 the core on CPU, two threads
    python benchmarks/attention.py --device cuda   the layer on GPU, and sizes too large for PyG

Prints a line `figure NAME VALUE` for each ratio and amount, and writes them with hardware and
command to results/attention.json. A speedup over PyG is PyG's time divided by ours: more is better.
A time relative to a gather is ours divided by the time of only reading rows, two per edge in each
of three passes: forward, and backward by target and by source. Our code reads one less of these
six; "to five" compares with the five rows that it reads.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import TransformerConv as PyGConv

from measure import FOLDER, Figures, cpu_gib, edge_index_of, gpu_gib, hop_of_size, seconds
from unimp.graph.hop import Hop
from unimp.model.transformer_conv import TransformerConv
from unimp.model.unimp import UniMP
from unimp.ops.allocator import keep_freed_memory
from unimp.ops.attention import graph_attention
from unimp.ops.recording import WARMUP
from unimp.tasks.task import Sizes

ARXIV = {"num_nodes": 169_343, "num_edges": 2_484_941}
PROTEINS_PART = {"num_nodes": 13_253, "num_edges": 790_000, "edge_features": 8, "skew": 1.0}
PROTEINS = {"num_nodes": 132_534, "num_edges": 79_122_504, "edge_features": 8, "skew": 1.0}
PRODUCTS = {"num_nodes": 2_449_029, "num_edges": 123_718_280}
CASES = ("arxiv", "proteins-part", "proteins", "products")


class Core:
    """Attention on given queries, keys and values: ours, PyG's, and reading the same rows."""

    def __init__(self, hop: Hop, heads: int, width: int) -> None:
        generator = torch.Generator().manual_seed(1)
        shape = (hop.num_targets, heads, width)
        self.hop, self.edges = hop, edge_index_of(hop)
        self.query, self.key, self.value = (
            torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)
        )
        self.direction = torch.randn(shape, generator=generator)
        edge_width = 0 if hop.edge_attr is None else hop.edge_attr.shape[1]
        self.pyg = PyGConv(4, width, heads, edge_dim=edge_width or None)
        encoder = self.pyg.lin_edge
        self.edge_weight = encoder.weight.view(heads, width, -1) if edge_width else None
        _ = hop.transpose  # belongs to the graph and is computed once

    def ours(self) -> Tensor:
        return graph_attention(
            self.query, self.key, self.value, self.hop, edge_weight=self.edge_weight
        )

    def theirs(self) -> Tensor:
        return self.pyg.propagate(  # type: ignore[no-any-return]
            self.edges,
            query=self.query,
            key=self.key,
            value=self.value,
            edge_attr=self.hop.edge_attr,
            size=None,
        )

    def train(self, attend: Callable[[], Tensor]) -> None:
        operands = [self.query, self.key, self.value]
        if self.edge_weight is not None:
            operands.append(self.pyg.lin_edge.weight)
        out = attend()
        torch.autograd.grad(out, operands, self.direction.view_as(out))

    def gather(self, passes: int) -> None:
        """Read two rows per edge in each pass: by target forward and backward, then by source."""
        transpose = self.hop.transpose
        ways = [(self.hop.indptr, self.hop.source)] * 2 + [(transpose.indptr, transpose.target)]
        for indptr, column in ways[:passes]:
            for rows in (self.key, self.value):
                F.embedding_bag(column, rows.detach().flatten(1), indptr[:-1], mode="sum")

    def gather_five(self) -> None:
        """Read the rows that our code reads: two by target, two by source, keys by target again."""
        self.gather(1)
        rows, transpose = self.key.detach().flatten(1), self.hop.transpose
        F.embedding_bag(self.hop.source, rows, self.hop.indptr[:-1], mode="sum")
        for _ in range(2):
            F.embedding_bag(transpose.target, rows, transpose.indptr[:-1], mode="sum")


def no_grad(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return torch.no_grad()(call)


def on_cpu(figures: Figures, repeats: int) -> None:
    torch.set_num_threads(2)
    core = Core(hop_of_size(**ARXIV, device="cpu"), 2, 128)
    took = seconds(
        {
            "gather": lambda: core.gather(1),
            "ours": no_grad(core.ours),
            "pyg": no_grad(core.theirs),
            "gather, training": lambda: core.gather(3),
            "gather five, training": core.gather_five,
            "ours, training": lambda: core.train(core.ours),
            "pyg, training": lambda: core.train(core.theirs),
        },
        repeats=repeats,
        device="cpu",
    )
    arxiv = "CPU, arxiv size, 2 × 128, fp32, core"
    for step, suffix, aim, floor in (
        ("forward", "", "≥ 9", "≤ 1.25"),
        ("forward + backward", ", training", "≥ 6", "≤ 1.35"),
    ):
        ours, name = took["ours" + suffix], "forward" if not suffix else "training"
        over, near = took["pyg" + suffix] / ours, ours / took["gather" + suffix]
        figures.add(
            f"cpu-arxiv-core-{name}-over-pyg", over, f"{arxiv}, {step}, speedup over PyG", aim
        )
        figures.add(
            f"cpu-arxiv-core-{name}-to-gather",
            near,
            f"{arxiv}, {step}, time relative to a gather",
            floor,
        )
        figures.add(f"cpu-arxiv-core-{name}-seconds", ours, f"{arxiv}, {step}, seconds")
    to_five = took["ours, training"] / took["gather five, training"]
    of_five = f"{arxiv}, forward + backward, time relative to a gather of the five rows it reads"
    figures.add("cpu-arxiv-core-training-to-five", to_five, of_five)
    peak = {which: memory_of(which) for which in ("ours", "theirs")}
    share = peak["ours"] / peak["theirs"]
    figures.add("cpu-arxiv-core-extra-gib", peak["ours"], f"{arxiv}, training, extra peak GiB")
    figures.add("cpu-arxiv-core-extra-gib-pyg", peak["theirs"], f"{arxiv}, PyG's extra peak GiB")
    figures.add(
        "cpu-arxiv-core-memory-share",
        share,
        f"{arxiv}, extra peak memory relative to PyG's",
        "≤ 0.05",
    )
    dense = Core(hop_of_size(**PROTEINS_PART, device="cpu"), 4, 64)
    took = seconds(
        {
            "ours": lambda: dense.train(dense.ours),
            "pyg": lambda: dense.train(dense.theirs),
        },
        repeats=repeats,
        device="cpu",
        settle=True,
    )
    what = "CPU, proteins part, 4 × 64, 8-d edge features, core, forward + backward"
    over = took["pyg"] / took["ours"]
    figures.add(
        "cpu-proteins-part-core-training-over-pyg", over, f"{what}, speedup over PyG", "≥ 8"
    )
    figures.add("cpu-proteins-part-core-training-seconds", took["ours"], f"{what}, seconds")


def memory_of(which: str) -> float:
    """The extra peak memory of one training step of the core, in a separate process."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", which], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def conv(kind: Any, hop: Hop, heads: int, width: int) -> Any:
    """A layer with a gate: PyG's, or ours, which takes the same arguments."""
    edge_width = None if hop.edge_attr is None else hop.edge_attr.shape[1]
    return kind(heads * width, width, heads, beta=True, edge_dim=edge_width)


def on_gpu(figures: Figures, repeats: int, cases: list[str], brief: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    if "arxiv" in cases:
        aims = {
            "float32": ("≥ 8", "≥ 5.5", "≥ 2"),
            "bfloat16": ("≥ 11", "≥ 6.5", "≥ 2"),
        }
        layer_ratios(figures, "arxiv", ARXIV, 2, 128, aims, repeats, brief)
    if "proteins-part" in cases:
        aims = {"float32": ("", "≥ 3", ""), "bfloat16": ("", "≥ 5", "")}
        layer_ratios(figures, "proteins-part", PROTEINS_PART, 4, 64, aims, repeats, brief)
    if "proteins" in cases:
        proteins_step(figures)
    if "products" in cases:
        products(figures)


def layer_ratios(
    figures: Figures,
    name: str,
    size: dict[str, float],
    heads: int,
    width: int,
    aims: dict[str, tuple[str, str, str]],
    repeats: int,
    brief: bool,
) -> None:
    hop = hop_of_size(**size, device="cuda")  # type: ignore[arg-type]
    edges = edge_index_of(hop)
    for precision, aimed in aims.items():
        one_precision(figures, name, hop, edges, heads, width, precision, aimed, repeats, brief)


def one_precision(
    figures: Figures,
    name: str,
    hop: Hop,
    edges: Tensor,
    heads: int,
    width: int,
    precision: str,
    aims: tuple[str, str, str],
    repeats: int,
    brief: bool,
) -> None:
    dtype = getattr(torch, precision)
    x = torch.randn(hop.num_targets, heads * width, device="cuda", dtype=dtype).requires_grad_()
    direction = torch.randn_like(x)
    attr = None if hop.edge_attr is None else hop.edge_attr.to(dtype)
    pyg = conv(PyGConv, hop, heads, width).cuda().to(dtype)
    ours, launched, ours_compiled = (
        conv(TransformerConv, hop, heads, width).cuda().to(dtype) for _ in range(3)
    )
    launched.replay = False
    layers: dict[str, Any] = {
        "launched": launched,
        "ours": ours,
        "ours-compiled": torch.compile(ours_compiled, dynamic=False),
        "eager": pyg,
        "compiled": torch.compile(pyg, dynamic=False),
    }
    calls: dict[str, Callable[[], Tensor]] = {
        who: partial(layer, x, edges, attr) for who, layer in layers.items()
    }

    def training_of(call: Callable[[], Tensor], weights: list[Tensor]) -> Callable[[], None]:
        def train() -> None:
            # As in training: another thread for the backward pass costs both sides time.
            with torch.autograd.set_multithreading_enabled(False):
                call().backward(direction)
            for leaf in (x, *weights):
                leaf.grad = None

        return train

    if brief:
        del layers["ours-compiled"], calls["ours-compiled"]
    steps = {who: training_of(call, [*layers[who].parameters()]) for who, call in calls.items()}
    short = {"float32": "fp32", "bfloat16": "bf16"}[precision]
    what, label = f"H200, {name} size, {short}, whole layer", f"gpu-{name}-{short}"
    steps["launched"]()
    before = reserved_gib()
    repeat(steps["ours"])  # until it is recorded
    held = reserved_gib() - before
    figures.add(f"{label}-recording-gib", held, f"{what}, GiB that a recording occupies")
    measured = {"training": (steps, {"eager": aims[0], "compiled": aims[1]})}
    if not brief:
        whole = recorded(layers["compiled"], x, edges, attr)
        steps["compiled-recorded"] = training_of(whole, [*pyg.parameters()])
        without = {who: no_grad(call) for who, call in calls.items()}
        measured["forward"] = without, {"eager": "", "compiled": aims[2]}  # type: ignore[assignment]
    for step, (which, aim_of) in measured.items():
        for one in which.values():
            repeat(one)
        took = seconds(which, repeats=repeats, device="cuda")
        for other, aim in aim_of.items():
            of = f"{what}, {step}, speedup over PyG {other}"
            ratio = took[other] / took["ours"]
            figures.add(f"{label}-{step}-over-pyg-{other}", ratio, of, aim)
        if "ours-compiled" in took:
            ratio = took["compiled"] / took["ours-compiled"]
            of = f"{what}, {step}, speedup, both compiled"
            figures.add(f"{label}-{step}-both-compiled", ratio, of)
        if "compiled-recorded" in took:
            ratio = took["compiled-recorded"] / took["ours"]
            of = f"{what}, {step}, both recorded as CUDA graphs, speedup over PyG compiled"
            figures.add(f"{label}-{step}-both-recorded", ratio, of, aim_of["compiled"])
        for who, value in took.items():
            figures.add(f"{label}-{step}-ms-{who}", 1e3 * value, f"{what}, {step}, ms, {who}")
    for who in ("ours",) if brief else ("ours", "launched", "compiled"):
        of = f"{what}, training, {who}"
        gpu = gpu_milliseconds(steps[who], f"{label} training {who}")
        figures.add(f"{label}-training-gpu-ms-{who}", gpu, f"{of}, ms in which the GPU works")
        cpu = 1e3 * launching_seconds(steps[who], repeats)
        figures.add(f"{label}-training-cpu-ms-{who}", cpu, f"{of}, ms until Python continues")
    if brief:
        return
    floor = 1e3 * 5 * hop.num_edges * heads * width * x.element_size() / copied_per_second()
    of = f"{what}, training, ms to read five rows per edge at the bandwidth of a copy"
    figures.add(f"{label}-training-floor-ms", floor, of)
    for who in calls:
        gib = gpu_gib(steps[who])
        figures.add(f"{label}-training-gib-{who}", gib, f"{what}, training, extra GiB, {who}")


def repeat(call: Callable[[], object]) -> None:
    """Call a function often enough for it to be compiled and recorded."""
    for _ in range(WARMUP + 2):
        call()


def reserved_gib() -> float:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**30


def gpu_milliseconds(call: Callable[[], object], name: str, times: int = 5) -> float:
    """The time of all kernels and copies of a call, without gaps; prints the longest ones."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(times):
            call()
        torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda one: -one.self_device_time_total)
    for one in kernels[:16]:
        took = one.self_device_time_total / times
        print(
            f"kernel {name}: {took:8.1f} µs, {one.count // times:3d} × {one.key[:90]}", flush=True
        )
    return sum(float(one.self_device_time_total) for one in kernels) / times / 1e3


def launching_seconds(call: Callable[[], object], repeats: int) -> float:
    """The median time until a call returns, while the GPU may still work."""
    taken = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    return statistics.median(taken)


def copied_per_second() -> float:
    """The bytes that a copy reads and writes per second."""
    rows = torch.empty(2**28, device="cuda")
    other = torch.empty_like(rows)
    took = seconds({"copy": lambda: other.copy_(rows)}, repeats=5, device="cuda")["copy"]
    return 2 * rows.numel() * rows.element_size() / took


def recorded(layer: Callable[..., Tensor], x: Tensor, *rest: object) -> Callable[[], Tensor]:
    """A layer on a fixed graph, recorded as CUDA graphs, forward and backward."""

    class OnGraph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, h: Tensor) -> Tensor:
            return self.layer(h, *rest)

    replayed = torch.cuda.make_graphed_callables(OnGraph(), (x.detach().requires_grad_(),))
    return lambda: replayed(x)


def proteins_model() -> UniMP:
    sizes = Sizes(features=8, classes=112, edge_features=8, multilabel=True)
    return UniMP(
        sizes,
        layers=7,
        width=64,
        heads=4,
        head="linear",
        feature_encoder=True,
        edge_encoder="shared",
        gate="all",
    ).cuda()


def proteins_step(figures: Figures) -> None:
    """A training step of the proteins model on the whole graph at once."""
    hop = hop_of_size(**PROTEINS, device="cuda")  # type: ignore[arg-type]
    assert hop.edge_attr is not None
    hop = hop.with_edge_attr(hop.edge_attr.bfloat16())
    _ = hop.source_schedule, hop.schedule
    model = proteins_model()
    x = torch.randn(hop.num_sources, 8, device="cuda")
    labels = torch.randint(2, (hop.num_sources, 112), device="cuda")
    observed = torch.where(torch.rand(hop.num_sources, 1, device="cuda") < 0.5, labels, -1)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, observed, [hop] * 7)
        F.binary_cross_entropy_with_logits(logits.float(), labels.float()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    gib = gpu_gib(step)
    took = seconds({"step": step}, repeats=3, device="cuda")["step"]
    what = "H200, proteins size, whole graph, 7 layers, bf16, training step"
    figures.add("gpu-proteins-step-seconds", took, f"{what}, seconds", "≤ 0.8")
    figures.add("gpu-proteins-step-gib", gib, f"{what}, extra GiB", "≤ 60")


def products(figures: Figures) -> None:
    """Exact inference on all of products at once, and a training step."""
    hop = hop_of_size(**PRODUCTS, device="cuda")  # type: ignore[arg-type]
    _ = hop.schedule
    model = UniMP(
        Sizes(features=100, edge_features=0, classes=47, multilabel=False),
        layers=3,
        width=128,
        heads=4,
    ).cuda()
    x = torch.randn(hop.num_sources, 100, device="cuda")
    labels = torch.randint(47, (hop.num_sources,), device="cuda")
    observed = torch.where(torch.rand(hop.num_sources, device="cuda") < 0.05, labels, -1)

    def infer() -> None:
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            model(x, observed, [hop] * 3)

    def train() -> None:
        model.train()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, observed, [hop] * 3)
        F.cross_entropy(logits.float(), labels).backward()
        model.zero_grad(set_to_none=True)

    what = "H200, products size, 4 × 128, 3 layers, bf16"
    infer()
    figures.add("gpu-products-inference-gib", gpu_gib(infer), f"{what}, inference, extra GiB")
    took = seconds({"infer": infer}, repeats=3, device="cuda")["infer"]
    figures.add(
        "gpu-products-inference-seconds", took, f"{what}, exact inference, seconds", "≤ 0.5"
    )
    _ = hop.source_schedule
    train()
    figures.add("gpu-products-step-gib", gpu_gib(train), f"{what}, full-batch step, extra GiB")
    took = seconds({"train": train}, repeats=2, device="cuda")["train"]
    figures.add(
        "gpu-products-step-seconds", took, f"{what}, full-batch training step, seconds", "runs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cases", default=",".join(CASES), help="Comma-separated cases to run on GPU."
    )
    parser.add_argument(
        "--brief", action="store_true", help="Measure only training of our layer and PyG's on GPU."
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--memory-of", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - set(CASES):
        parser.error(f"unknown case {', '.join(unknown)}; choose from {', '.join(CASES)}")
    if arguments.memory_of:
        torch.set_num_threads(2)
        core = Core(hop_of_size(**ARXIV, device="cpu"), 2, 128)
        print(cpu_gib(lambda: core.train(getattr(core, arguments.memory_of))))
        return
    keep_freed_memory()
    figures = Figures("attention", arguments.out)
    if arguments.device == "cuda":
        on_gpu(figures, arguments.repeats, arguments.cases.split(","), arguments.brief)
    else:
        on_cpu(figures, arguments.repeats)


if __name__ == "__main__":
    main()
