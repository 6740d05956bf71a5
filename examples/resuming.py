"""Stop a run, resume it with the same call, and get the result of an uninterrupted run."""

import torch

import unimp


def train(folder, stop_after=None):
    def on_epoch(epoch):
        if epoch.epoch == stop_after:
            raise KeyboardInterrupt  # as Ctrl-C does

    return unimp.run(
        "synthetic",
        settings=[
            "task.scale=0.05",
            "model.width=16",
            "train.epochs=20",
            "train.device=cpu",
            "train.checkpoint_every=0.01",  # seconds; the default is 60
        ],
        out=folder,
        on_epoch=on_epoch,
    )


try:
    train("runs/stopped", stop_after=12)
except KeyboardInterrupt:
    print("stopped in epoch 12")

resumed = train("runs/stopped")  # resumes from the checkpoint
whole = train("runs/whole")
assert torch.equal(resumed.predict(), whole.predict())

again = train("runs/stopped")  # it is finished: loaded, not trained
assert again.metrics == resumed.metrics
