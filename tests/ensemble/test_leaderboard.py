"""The leaderboard states how weights were chosen, and whether labels as inputs helped."""

from typing import Any

from unimp.ensemble.leaderboard import label_gain_in_words, refit_in_words, weights_in_words


def test_the_gain_by_labels_is_stated_if_both_members_were_trained() -> None:
    rows = [
        {"name": "unimp", "val": 0.75, "cut_short": False},
        {"name": "unimp-features", "val": 0.705, "cut_short": False},
        {"name": "mlp", "val": None, "cut_short": False},
    ]
    words = label_gain_in_words(rows)
    assert "75.00 %" in words
    assert "70.50 %" in words
    assert "+4.50 points" in words
    assert label_gain_in_words(rows[:1]) == ""
    assert label_gain_in_words([{**rows[0], "val": None}, rows[1]]) == ""
    assert label_gain_in_words([{**rows[0], "cut_short": True}, rows[1]]) == ""


def test_the_choice_of_weights_is_stated() -> None:
    chosen: dict[str, Any] = {
        "members": [{"name": n, "weight": w} for n, w in (("a", 0.7), ("b", 0.3), ("c", 0.0))],
        "not_refitted": {},
    }
    assert "log-loss on validation" in weights_in_words(chosen, "accuracy")
    assert "ROC-AUC" in weights_in_words(chosen, "rocauc")
    assert "held-out folds" in weights_in_words({**chosen, "folds": 5}, "accuracy")
    equal = {"members": [{"name": n, "weight": 0.5} for n in "ab"]}
    assert "too few" in weights_in_words(equal, "accuracy")
    assert weights_in_words({"members": [{"name": "a", "weight": 1.0}]}, "accuracy") == ""


def test_the_leaderboard_states_how_members_were_trained_again() -> None:
    rows = [{"weight": 0.7, "folds": 1}, {"weight": 0.3, "folds": 1}, {"weight": 0.0, "folds": 1}]
    summary: dict[str, Any] = {"members": rows, "refitted": False, "not_refitted": {}}
    assert refit_in_words(summary) == []
    (words,) = refit_in_words({**summary, "not_refitted": {"gcn": "no time"}})
    assert "gcn: no time" in words
    summary |= {"refitted": True, "not_refitted": {"gcn": "no time"}}
    assert refit_in_words(summary) == [
        "After scoring, 1 of 2 chosen members were refitted on train and validation labels.",
        "The scores of members were measured before that; their weights are the final ones.",
        "gcn was not refitted: no time.",
    ]
    words, score, _, left_out = refit_in_words({**summary, "folds": 5, "val_folds": 0.7})
    assert left_out == "gcn was left out of the ensemble: no time."
    assert "5 folds" in words
    assert "70.00 %" in score
