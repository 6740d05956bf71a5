"""The leaderboard states whether labels as inputs helped."""

from unimp.ensemble.leaderboard import label_gain_in_words


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
