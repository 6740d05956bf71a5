"""A floor under the accuracy of a bundled recipe: a change that breaks learning fails here."""

import unimp


def test_a_short_training_of_the_california_recipe_stays_above_its_floor() -> None:
    settings = ["train.epochs=12", "train.eval_every=4", "train.device=cpu"]
    with_labels = unimp.run("california", settings=settings, progress=False)
    scores = with_labels.metrics["scores"]["train"]
    assert scores["test"] > 0.60  # label propagation reaches 0.64, the majority class 0.20
    assert scores["val"] > 0.60
