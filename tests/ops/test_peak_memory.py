"""Peak memory: no tensor of size edges × heads × width, on any backend but the reference."""

import os
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gat import GATLayer
from unimp.model.gcn import GCNLayer, with_convolution_weights
from unimp.model.layers import EdgeEncoder, GraphTransformerLayer, MessageLayer
from unimp.ops import native

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints a line per call otherwise

NODES, EDGES, HEADS, WIDTH, EDGE_WIDTH = 200, 20_000, 4, 64, 3
FLOAT = 4
MESSAGES = EDGES * HEADS * WIDTH * FLOAT  # bytes of one message per edge


def hub_graph(*, edges: bool) -> Graph:
    """Half of the edges end in node 0."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(NODES, (2, EDGES), generator=generator)
    ends[1, ::2] = 0
    attr = torch.randn(EDGES, EDGE_WIDTH, generator=generator) if edges else None
    return Graph.from_edges(ends, num_nodes=NODES, edge_attr=attr)


def peak_of_forward_and_backward(layer: MessageLayer, hop: Hop) -> int:
    """The peak of the bytes that torch allocates in a forward and a backward pass."""
    h = torch.randn(hop.num_sources, WIDTH, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        layer(h, hop).sum().backward()
    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    changes = [e for e in results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    current = peak = 0
    for event in changes:
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def transformer_layer(backend: Any, *, edges: bool, dropout: float) -> GraphTransformerLayer:
    return GraphTransformerLayer(
        WIDTH,
        WIDTH,
        heads=HEADS,
        residual="gated",
        edge_encoder=EdgeEncoder(EDGE_WIDTH, HEADS * WIDTH) if edges else None,
        attention_dropout=dropout,
        backend=backend,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
@pytest.mark.parametrize("backend", ["native", "sparse"])
def test_attention_on_a_hub_graph_needs_far_less_than_one_message_per_edge(
    backend: str, edges: bool, dropout: float
) -> None:
    if backend == "native" and not native.available():
        pytest.skip("the native core is not built")
    layer = transformer_layer(backend, edges=edges, dropout=dropout)
    peak = peak_of_forward_and_backward(layer, hub_graph(edges=edges).hop)
    assert EDGES * HEADS * FLOAT <= peak < MESSAGES / 3


def test_the_reference_needs_more_than_one_message_per_edge() -> None:
    """The measurement works: it detects tensors of messages."""
    layer = transformer_layer("reference", edges=False, dropout=0.0)
    assert peak_of_forward_and_backward(layer, hub_graph(edges=False).hop) > MESSAGES


def test_gat_and_gcn_need_far_less_than_one_message_per_edge() -> None:
    graph = hub_graph(edges=False)
    assert peak_of_forward_and_backward(GATLayer(WIDTH, WIDTH, heads=HEADS), graph.hop) < (
        MESSAGES / 3
    )
    hop = with_convolution_weights(graph).hop
    layer = GCNLayer(WIDTH, HEADS * WIDTH)
    assert peak_of_forward_and_backward(layer, hop) < MESSAGES / 3
