"""Ways to pool the history of a user, by how well a plain loop learns from it in one pass, predict-then-train.

The made-up stream is about shops: whether somebody clicks on an offer depends on what they did last in this shop, one
of up to 20 things in their history. Of MovieLens, in order of time, the history is the 20 items that the user liked
last.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch

from dispatch.progress.prequential import Prequential
from dispatch.progress.quality import Quality
from infra.run.plain_loop import reference_of
from infra.run.settings import load_settings
from ingest.convert import Converter, Event
from ingest.producing.readers import read_dataset
from trainer.reference import Reference

PAST = 20
"""Most values of a history."""
SHOPS = 40
ODDS: Mapping[str, float] = {"bought": 0.5, "looked": 0.15, "returned": 0.02}
"""Probability of a click, by what was done last in the shop."""
CHOICES: Mapping[str, str] = {
    "no history": "",
    "mean": 'pool = "mean"',
    "attention": 'pool = "attention"\nquery = "item"',
    "attention, the item's rows": 'pool = "attention"\nquery = "item"\nrows_of = "item"',
}


class HistoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """One pass with one way to pool histories."""

    choice: str
    samples: int
    overall: Quality
    second_half: Quality


def run_histories(folder: Path, file: Path | None, samples: int, batch: int) -> list[HistoryResult]:
    """One pass for each choice; file: MovieLens; None: the made-up stream, of so many samples."""
    events = list(made_up_visits(samples) if file is None else liked_before(file))
    results = []
    for choice, pool in CHOICES.items():
        if file is None and "rows_of" in pool:
            continue  # what was done in a shop is no shop
        schema = folder / "histories.toml"
        schema.write_text(_toml(pool, has_user=file is not None), encoding="utf-8")
        settings = load_settings(
            None, [f"stream.schema_name={schema}", f"stream.batch={batch}"], run="bench-histories", folder=folder
        )
        reference = reference_of(settings, torch.device("cpu"))
        whole, later = learn(reference, Converter(settings.event_schema), events, batch)
        results.append(HistoryResult(choice=choice, samples=len(events), overall=whole, second_half=later))
    return results


def learn(reference: Reference, converter: Converter, events: Sequence[Event], batch: int) -> tuple[Quality, Quality]:
    """One pass: quality over all events, and over the second half."""
    whole = Prequential()
    later = Prequential()
    for start in range(0, len(events), batch):
        samples, faults = converter.convert_events(events[start : start + batch])
        assert not faults, "events of this benchmark fit its schema"
        logits_B = reference.step(samples.keys_BF, samples.dense_BN, samples.labels_B, shares_BP=samples.shares_BP)
        whole.add(logits_B, samples.labels_B)
        if start >= len(events) // 2:
            later.add(logits_B, samples.labels_B)
    return whole.overall(), later.overall()


def made_up_visits(samples: int, seed: int = 0) -> Iterator[Event]:
    """Offers of shops that the user has visited before."""
    draw = np.random.default_rng(seed)
    for number in range(samples):
        seen = draw.permutation(SHOPS)[: draw.integers(5, PAST + 1)]
        did = draw.choice(list(ODDS), len(seen))
        at = int(draw.integers(len(seen)))
        past = [f"{shop} {action}" for shop, action in zip(seen, did, strict=True)]
        yield Event(float(number), int(draw.random() < ODDS[did[at]]), {"item": int(seen[at]), "past": list(past)})


def liked_before(file: Path) -> Iterator[Event]:
    """MovieLens with what each user liked before, newest first."""
    liked: defaultdict[object, deque[str]] = defaultdict(lambda: deque(maxlen=PAST))
    for event in sorted(read_dataset("movielens", file), key=lambda event: event.event_time):
        past = liked[event.fields["user"]]
        yield Event(event.event_time, event.label, {**event.fields, "past": list(reversed(past))})
        if event.label:
            past.append(str(event.fields["item"]))


def _toml(pool: str, has_user: bool) -> str:
    names = ["user", "item"] if has_user else ["item"]
    tables = [f'[[tables]]\nname = "{name}"' for name in names]
    tables += [f'[[tables]]\nname = "past"\nvalues = {PAST}\n{pool}'] if pool else []
    return "\n".join(['name = "histories"', *tables]) + "\n"
