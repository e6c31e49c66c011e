from pathlib import Path

from benchmarks.durability.checkpoint import run_checkpoint


def test_checkpoints_of_a_small_shard_are_measured_and_restored(tmp_path: Path) -> None:
    result = run_checkpoint(tmp_path, rows=70_000, dim=4, share=0.01, checkpoints=2)
    assert (result.changed, result.checkpoints) == (700, 2)
    assert 1.0 <= result.written_ratio < 1.2, "changes alone are written"
    assert 0 < result.pause_ms <= result.worst_pause_ms
    assert min(result.checkpoint_ms, result.plain_ms, result.first_checkpoint_ms, result.restore_ms) > 0
    assert not (tmp_path / "plain").exists()
