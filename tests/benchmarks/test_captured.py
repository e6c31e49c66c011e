"""The captured loop trains as the plain one does; otherwise it would be no limit of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.captured import CapturedLoop, KnownBatch
from benchmarks.clicks import made_up_samples
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.run.plain_loop import reference_of
from infra.run.settings import load_settings
from ingest.samples import Samples

BATCH = 64
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def known_batches(samples: Samples) -> tuple[list[KnownBatch], np.ndarray]:
    index, keys, batches = Index(), [], []
    for at in range(0, len(samples), BATCH):
        part = samples.slice(at, at + BATCH)
        rows = index.resolve(number_keys(np.ascontiguousarray(part.keys_BF)))
        keys.append(np.array(rows.new_keys))
        arrays = (rows.rows_U, rows.local_BF, part.dense_BN, part.labels_B)
        batches.append(KnownBatch(*(torch.from_numpy(array.copy()) for array in arrays)))
    return batches, np.concatenate(keys)


@pytest.mark.gpu
@needs_gpu
def test_the_captured_loop_predicts_what_the_plain_loop_does(tmp_path: Path) -> None:
    settings = load_settings(None, ["stream.schema_name=criteo", f"stream.batch={BATCH}"], run="limit", folder=tmp_path)
    (samples,) = made_up_samples(settings.event_schema, 20 * BATCH)
    batches, keys_R = known_batches(samples)
    largest = max(batches, key=lambda known: len(known.rows_U))
    captured = CapturedLoop(settings, keys_R, largest, torch.device("cuda"))
    plain = reference_of(settings, torch.device("cuda"))
    plain.grow(keys_R)
    for rows_U, positions_BF, dense_BN, labels_B in [largest] * 3:  # what the captured loop trained before its capture
        plain.train(rows_U[positions_BF].cuda(), dense_BN.cuda(), labels_B.cuda())
    for known in batches:
        rows_BF = known.rows_U[known.positions_BF].cuda()
        expected_B = plain.train(rows_BF, known.dense_BN.cuda(), known.labels_B.cuda())
        np.testing.assert_allclose(captured.train(known), expected_B, atol=2e-3)
