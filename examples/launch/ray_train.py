"""Train one model with Ray Train: python ray_train.py recipe.toml /shared/run 4

Ray starts the processes and sets the variables that torchrun would set. Each process then calls
`unimp.run`, as a script that torchrun starts would do.
"""

from __future__ import annotations

import sys
from typing import Any


def train_one(config: dict[str, Any]) -> None:
    """Train in one process of Ray."""
    import unimp

    run = unimp.run(config["recipe"], out=config["out"], settings=config["settings"])
    print(run.metrics["scores"])


def main(recipe: str, out: str, processes: str = "2") -> None:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        train_one,
        train_loop_config={"recipe": recipe, "out": out, "settings": {}},
        # Set use_gpu to True on machines with GPUs.
        scaling_config=ScalingConfig(num_workers=int(processes), use_gpu=False),
    )
    trainer.fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
