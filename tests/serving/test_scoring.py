from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from dispatch.feed.protocol import NO_QUESTION, QuestionArrays
from infra.base.telemetry import Meter
from ingest.samples import Samples
from serving.copies import Copies
from serving.loading import load, read_served_manifest
from serving.scoring import QuestionScorer
from tests.serving.trained import PROBE, Trained, samples_of


def question_of(samples: Samples) -> tuple[int, QuestionArrays]:
    return len(samples), QuestionArrays(samples.keys_BF.reshape(-1), samples.dense_BN.reshape(-1))


def serving(run: Trained, checkpoint: int) -> Copies:
    copies = Copies(run.spec)
    load(run.storage, read_served_manifest(run.storage, checkpoint), copies.standby)
    copies.swap()
    return copies


def test_a_question_is_answered_by_the_served_snapshot_known_keys_or_not(tmp_path: Path) -> None:
    run = Trained(tmp_path).train()
    scorer = QuestionScorer(serving(run, run.take()), Meter(CollectorRegistry()))
    answer = scorer(*question_of(PROBE))
    assert answer is not None
    assert (answer.timeline, answer.step, answer.checkpoint) == (0, run.step, 1)
    assert np.abs(answer.probabilities_B - run.expected[1]).max() < 1e-6


def test_a_long_question_is_scored_in_slices_with_the_same_outcome(tmp_path: Path) -> None:
    run, many = Trained(tmp_path).train(), samples_of(1000, 5)
    copies = serving(run, run.take())
    answer = QuestionScorer(copies, Meter(CollectorRegistry()))(*question_of(many))
    with copies.reading() as (copy, _):
        wanted_B = copy.predict(many)
    assert answer is not None
    assert np.abs(answer.probabilities_B - wanted_B).max() < 1e-6


def test_nothing_is_answered_without_a_snapshot_or_about_samples_of_another_schema(tmp_path: Path) -> None:
    run = Trained(tmp_path).train()
    meter = Meter(CollectorRegistry())
    assert QuestionScorer(Copies(run.spec), meter)(*question_of(PROBE)) is None
    scorer = QuestionScorer(serving(run, run.take()), meter)
    assert scorer(len(PROBE) + 1, question_of(PROBE)[1]) is None
    assert scorer(0, NO_QUESTION) is None
