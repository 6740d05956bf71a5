"""torch.compile works with the attention operator, whose declarations are correct."""

from typing import Any

import pytest
import torch

from unimp.graph.graph import Graph
from unimp.model.unimp import UniMP
from unimp.ops import fused, native
from unimp.tasks.task import Sizes

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.fixture
def graph(random_graph: Any) -> Graph:
    made: Graph = random_graph(40, 200, features=6, edge_features=2)
    return made


@pytest.mark.parametrize("attention_dropout", [0.0, 0.3])
def test_a_model_compiles_as_one_graph_with_the_same_results(
    graph: Graph, attention_dropout: float
) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"layers": 2, "width": 4, "heads": 2, "gate": "all"}
    sizes = Sizes(features=6, edge_features=2, classes=3, multilabel=False)
    dropout = {"dropout": 0.0, "input_dropout": 0.0, "attention_dropout": attention_dropout}
    model = UniMP(sizes, **dropout, **options)
    observed = torch.randint(-1, 3, (graph.num_nodes,))
    _ = graph.hop.transpose  # derived from the graph once, outside the model
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)

    def results(run: Any) -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        logits = run(graph.x, observed, [graph.hop] * 2)
        logits.square().sum().backward()
        return [
            logits.detach(),
            *(p.grad.clone() for p in model.parameters() if p.grad is not None),
        ]

    for got, expected in zip(results(compiled), results(model), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edges", [False, True], ids=["plain", "edge features"])
def test_the_operator_declares_its_outputs_and_gradients(graph: Graph, edges: bool) -> None:
    def rows(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    count = graph.num_nodes
    arguments = (
        *(rows(count, 2, 4) for _ in range(3)),
        rows(count, 2, 2) if edges else None,
        rows(graph.num_edges, 2) if edges else None,
        list(fused.edges_of(graph.hop, "native", backward=True)),
        0.25,
        torch.tensor(3),
        "native",
    )
    torch.library.opcheck(torch.ops.unimp.attend.default, arguments)
