"""laia: each sample to the worker that already holds most of its rows (dispatch/placement/assign/rows_held.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Policy
from dispatch.placement.policies.spec import NamedSpec, Spec, split_last

PARTS = "parts"


@dataclass(frozen=True)
class LaiaSpec(NamedSpec):
    name = "laia"
    form = f"laia[:{PARTS}]"

    parts: bool = False
    """Whether part-holders of a split row count as holders, as in esd's cost."""

    @classmethod
    def parse(cls, parameters: Sequence[str]) -> Spec | None:
        written, parts = split_last(parameters, PARTS)
        return None if written else cls(parts)

    def __str__(self) -> str:
        return f"laia:{PARTS}" if self.parts else "laia"

    def build(self, seed: int, backend: Backend) -> Policy:
        from dispatch.placement.assign.rows_held import Laia

        return Laia(self.parts)
