"""Attention learns what a mean of the history cannot tell; the histories are those of before."""

from pathlib import Path

from benchmarks.histories import liked_before, run_histories


def test_attention_learns_more_than_the_mean_where_the_shop_decides(tmp_path: Path) -> None:
    results = {each.choice: each.second_half.logloss for each in run_histories(tmp_path, None, 10_000, 64)}
    assert list(results) == ["no history", "mean", "attention"]
    assert results["attention"] is not None
    assert results["attention"] < min(results["mean"] or 0, results["no history"] or 0) - 0.01


def test_a_history_holds_what_a_user_liked_before_newest_first(tmp_path: Path) -> None:
    file = tmp_path / "ratings.tsv"
    file.write_text("u\ta\t5\t1\nu\tb\t1\t2\nu\tc\t4\t3\nv\ta\t5\t4\nu\td\t5\t5\n")
    past = [event.fields["past"] for event in liked_before(file)]
    assert past == [[], ["a"], ["a"], [], ["c", "a"]]
