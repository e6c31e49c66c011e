"""laia: each sample to the worker that already holds most of its rows (dispatch/assign/rows_held.py)."""

from dataclasses import dataclass

from dispatch.assign.choices import OptBackend
from dispatch.assign.situation import Policy
from dispatch.policies.spec import PlainSpec


@dataclass(frozen=True)
class LaiaSpec(PlainSpec):
    name = form = "laia"

    def build(self, seed: int, opt_backend: OptBackend) -> Policy:
        from dispatch.assign.rows_held import Laia

        return Laia()
