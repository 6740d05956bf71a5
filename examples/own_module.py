"""Train your own module by masked label prediction; here PyG's GraphSAGE.

The module receives features and the labels observed in a step, and must predict the hidden ones.
Labels that arrive later are inputs at prediction, without retraining.
"""

from __future__ import annotations

try:
    from torch_geometric.nn import GraphSAGE
except ImportError:
    raise SystemExit("this example needs PyG; in the checkout: pip install '.[pyg]'") from None

from unimp import MaskedLabels, Run, run
from unimp.tasks.task import Sizes

WIDTH = 128  # width of the module's input: the features plus the embedded labels


def with_labels(sizes: Sizes) -> MaskedLabels:
    module = GraphSAGE(WIDTH, 64, num_layers=2, out_channels=sizes.classes, dropout=0.3)
    return MaskedLabels(module, sizes, width=WIDTH, reach=2)


def main(recipe: str = "debian", epochs: int = 60) -> Run:
    settings = [f"train.epochs={epochs}", "train.lr=1e-2", "train.eval_every=10"]
    return run(recipe, settings=settings, model=with_labels)


if __name__ == "__main__":
    print(main())
