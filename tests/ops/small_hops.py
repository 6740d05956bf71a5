"""Small hops for the tests of kernels."""

import torch

from unimp.graph.hop import Hop


def hop_of(num_targets: int, num_sources: int, edges: list[tuple[int, int]]) -> Hop:
    """Build a hop from edges (target, source)."""
    edges = sorted(edges)
    degree = torch.tensor([0] + [sum(t == i for t, _ in edges) for i in range(num_targets)])
    source = torch.tensor([s for _, s in edges], dtype=torch.int32)
    return Hop(degree.cumsum(0).to(torch.int32), source, num_sources)


def random_edges(num_targets: int, num_sources: int, count: int) -> list[tuple[int, int]]:
    generator = torch.Generator().manual_seed(count)
    target = torch.randint(num_targets, (count,), generator=generator).tolist()
    source = torch.randint(num_sources, (count,), generator=generator).tolist()
    return list(zip(target, source, strict=True))


def device_of(backend: str) -> str:
    """The device for a backend: Triton uses the GPU, or its interpreter on CPU."""
    return "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
