"""Runs whose journal stays whole, as these checks need it: a checkpoint at the end would drop its steps."""

import pytest

from dispatch.journal.run import RunJournal
from tests.end_to_end.threads import Plan, Result, train


def train_whole(plan: Plan) -> Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunJournal, "trim", lambda journal, oldest: None)
        return train(plan)
