"""Compare 500 suggested labels with 500 random ones on `debian`, without retraining.

    python proofs/suggest.py            trains seeds 0–4 → proofs/results/suggest.json
    python proofs/suggest.py RUN RUN …  uses finished runs

Protocol: the candidates are the nodes that `unimp suggest` may choose on a task with all labels
known, which is the test set. The true labels of the chosen nodes become inputs in addition to the
train labels. Test accuracy is measured on the nodes that neither the suggestions nor any random
draw revealed. These are the same nodes for every choice and for the score before, so that neither
removing hard nodes nor revealing an answer counts as a gain. Random is the mean of several draws.

There are two forms with the same weights: the model itself, and the model followed by Correct &
Smooth with its defaults. In each run, one form is chosen by the rule of `unimp suggest`
(`smoothed_if_better`): smoothed if it scores better on the validation nodes, with train labels as
inputs; the test set is not used. The proof passes if, with the chosen form, suggestions raise the
mean accuracy over seeds, and raise it more than random labels do. Both forms are reported. The
weights that `suggest` uses were chosen on split 10.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unimp
from unimp.analysis.suggest import chance_of_error, suggest_nodes, unknown_nodes
from unimp.data.files import write_atomically
from unimp.tasks.labels import mask_of
from unimp.tasks.means import mean_and_std
from unimp.tasks.metrics import accuracy
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "suggest.json"
FORMS = ("none", "correct-and-smooth")


def runs(folders: Sequence[Path], recipe: str, seeds: Sequence[int]) -> Iterator[unimp.Run]:
    """The runs in these folders, or new ones."""
    if folders:
        yield from (unimp.load_run(folder) for folder in folders)
    else:
        yield from (unimp.run(recipe, seed=seed) for seed in seeds)


class Answers:
    """The scores of all nodes when more labels are inputs, smoothed or not."""

    def __init__(self, run: unimp.Run) -> None:
        self.run = run
        self.forms = {
            form: replace(run, recipe=run.recipe.with_settings([f"smooth.form={form}"]))
            for form in FORMS
        }
        self.logits: dict[str, Tensor] = {}  # the model runs once for each set of labels

    def scores(self, form: str, key: str, nodes: Tensor) -> Tensor:
        """Scores when the true labels of `nodes` are inputs as well; `key` names these nodes."""
        observed = self.run.observed_labels(reveal="train")
        observed[nodes] = self.run.task.labels[nodes]
        if key not in self.logits:
            self.logits[key] = self.run.logits(observed)
        return self.forms[form].smoothed_outputs(self.logits[key], observed)


def one(run: unimp.Run, number: int, draws: int) -> dict[str, Any]:
    """The gains of suggested and random labels in one run, for each form."""
    task, answers = run.task, Answers(run)
    nothing = torch.empty(0, dtype=torch.int64)
    observed = run.observed_labels(reveal="train")
    unknown = unknown_nodes(task, observed)
    candidates = torch.nonzero(unknown).squeeze(1)
    generator = torch.Generator().manual_seed(run.seed)
    random = [
        candidates[torch.randperm(len(candidates), generator=generator)[:number]]
        for _ in range(draws)
    ]
    rule = run.smoothed_if_better()
    found: dict[str, Any] = {
        "seed": run.seed,
        "candidates": len(candidates),
        "validation": rule.metrics["smoothing"]["val"],
        "chosen": rule.recipe.smooth.form,
        "forms": {},
    }
    for form in FORMS:
        before = answers.scores(form, "train", nothing)
        asked = answers.forms[form]
        calibrated = replace(asked, metrics={"calibration": asked.calibrate(before)})
        error = chance_of_error(calibrated.probabilities_of(before), multilabel=False)
        chosen = suggest_nodes(task.graph, error, unknown, number)
        nodes = torch.tensor([suggestion.node for suggestion in chosen])
        revealed = mask_of(torch.cat((nodes, *random)), task.graph.num_nodes)
        scored = task.split.test[~revealed[task.split.test]]
        labels = task.labels[scored]
        base = accuracy(before[scored], labels)
        suggested = accuracy(answers.scores(form, f"suggested {form}", nodes)[scored], labels)
        others = [
            accuracy(answers.scores(form, f"random {k}", drawn)[scored], labels)
            for k, drawn in enumerate(random)
        ]
        mean = sum(others) / len(others)
        wrong = before[nodes].argmax(1) != task.labels[nodes]
        found["forms"][form] = {
            "scored": len(scored),
            "before": base,
            "suggested": suggested,
            "random": others,
            "gain_suggested": suggested - base,
            "gain_random": mean - base,
            "difference": suggested - mean,
            "suggested_that_were_wrong": float(wrong.double().mean()),
        }
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means and deviations over seeds of the gains and of their paired difference.

    "chosen" takes the form that the rule chose in each run; the others take one form in all runs.
    """
    found: dict[str, Any] = {}
    for form in ("chosen", *FORMS):
        of_form = [row["forms"][row["chosen"] if form == "chosen" else form] for row in rows]
        for what in ("before", "gain_suggested", "gain_random", "difference"):
            mean, std = mean_and_std([one[what] for one in of_form])
            found.setdefault(form, {})[what] = {"mean": mean, "std": std}
        above = sum(one["difference"] > 0 for one in of_form)
        found[form]["seeds_above_random"] = f"{above} of {len(rows)}"
        gain, random = (found[form][f"gain_{what}"]["mean"] for what in ("suggested", "random"))
        found[form]["raised_more_than_random"] = gain > max(0.0, random)
    return found


def command(arguments: Sequence[str]) -> str:
    """The command of this proof, without folder names of this machine."""
    return re.sub(
        r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(("python proofs/suggest.py", *arguments))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--recipe", default="debian")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("-n", "--number", type=int, default=500)
    parser.add_argument("--draws", type=int, default=2, help="Number of random choices per seed.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    rows = []
    for run in runs(given.folders, given.recipe, given.seeds):
        rows.append(one(run, given.number, given.draws))
        for form, row in rows[-1]["forms"].items():
            chosen = ", chosen" if form == rows[-1]["chosen"] else ""
            print(
                f"seed {run.seed}, smooth.form={form}: {100 * row['before']:.2f}, suggested "
                f"{100 * row['gain_suggested']:+.3f}, random {100 * row['gain_random']:+.3f} "
                f"(validation {100 * rows[-1]['validation'][form]:.2f}{chosen})",
                flush=True,
            )
    means = summary(rows)
    found = {
        "command": command(sys.argv[1:] if arguments is None else arguments),
        "protocol": "candidates: the test set; true labels of the chosen nodes become inputs in "
        "addition to the train labels; scored: test nodes that no choice revealed; nothing is "
        "retrained; chosen: Correct & Smooth after the model if that scores better on validation, "
        "with train labels as inputs",
        "recipe": given.recipe,
        "labels": given.number,
        "draws": given.draws,
        "summary": means,
        "chosen": {form: sum(row["chosen"] == form for row in rows) for form in FORMS},
        "passed": means["chosen"]["raised_more_than_random"],
        "runs": rows,
        "unimp": unimp.__version__,
        "code": code_origin(),
        "torch": torch.__version__,
        "platform": platform.machine(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, (json.dumps(found, indent=2) + "\n").encode())
    for form, gained in means.items():
        gains = ", ".join(
            f"{what} {100 * gained[what]['mean']:+.3f} ± {100 * gained[what]['std']:.3f}"
            for what in ("gain_suggested", "gain_random", "difference")
        )
        print(f"{form}: {gains} ({gained['seeds_above_random']} above random)")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
