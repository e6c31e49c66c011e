"""Each way to pool a history is measured on the same samples; a history holds what was before."""

from pathlib import Path

from benchmarks.histories import liked_before, run_histories


def test_each_choice_is_measured_on_the_same_samples(tmp_path: Path) -> None:
    results = {each.choice: each.overall for each in run_histories(tmp_path, None, 512, 64)}
    assert list(results) == ["no history", "mean", "attention"]
    assert {(quality.samples, quality.clicks) for quality in results.values()} == {(512, results["mean"].clicks)}
    assert len({quality.logloss for quality in results.values()}) == 3, "each is another model"


def test_a_history_holds_what_a_user_liked_before_newest_first(tmp_path: Path) -> None:
    file = tmp_path / "ratings.tsv"
    file.write_text("u\ta\t5\t1\nu\tb\t1\t2\nu\tc\t4\t3\nv\ta\t5\t4\nu\td\t5\t5\n")
    past = [event.fields["past"] for event in liked_before(file)]
    assert past == [[], ["a"], ["a"], [], ["c", "a"]]
