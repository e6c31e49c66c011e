"""Runs whose journal stays whole, as the checks of this folder need it: a cut at the end would let its steps go."""

import pytest

from dispatch.journal.run import RunJournal
from tests.end_to_end.threads import Plan, Result, train


def train_whole(plan: Plan) -> Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunJournal, "trim", lambda journal, oldest: None)
        return train(plan)
