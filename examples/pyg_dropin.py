"""A model written for PyG, with one import changed: TransformerConv comes from unimp.

Trains two layers on a small graph whose edges mostly join nodes of the same class and carry one
feature that hints at it. Neither the model nor the loop knows whose layer it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Before: from torch_geometric.nn import TransformerConv
from unimp import TransformerConv

CLASSES, WIDTH, HEADS = 4, 16, 2


class Net(nn.Module):
    def __init__(self, in_width: int) -> None:
        super().__init__()
        self.conv1 = TransformerConv(
            in_width, WIDTH, heads=HEADS, beta=True, dropout=0.1, edge_dim=1
        )
        self.conv2 = TransformerConv(
            HEADS * WIDTH, CLASSES, heads=HEADS, concat=False, beta=True, edge_dim=1
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = F.relu(self.conv1(x, edge_index, edge_attr))
        logits: Tensor = self.conv2(h, edge_index, edge_attr)
        return logits


def communities(nodes: int = 400, edges: int = 6000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy features x, edges, edge features and classes y."""
    y = torch.randint(CLASSES, (nodes,))
    x = F.one_hot(y, CLASSES) + torch.randn(nodes, CLASSES)
    edge_index = torch.randint(nodes, (2, edges))
    same = y[edge_index[0]] == y[edge_index[1]]
    kept = same | (torch.rand(edges) < 0.2)
    edge_attr = same[kept, None] + 0.5 * torch.randn(int(kept.sum()), 1)
    return x, edge_index[:, kept], edge_attr, y


def main(epochs: int = 60) -> float:
    """Train on half of the nodes and print; returns the accuracy on the others."""
    torch.manual_seed(0)
    x, edge_index, edge_attr, y = communities()
    train = torch.rand(len(y)) < 0.5
    model = Net(x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, epochs + 1):
        model.train()
        loss = F.cross_entropy(model(x, edge_index, edge_attr)[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch:3d}   loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        right = model(x, edge_index, edge_attr).argmax(1) == y
    accuracy = float(right[~train].float().mean())
    print(f"accuracy on {int((~train).sum())} held-out nodes: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
