"""Field types that several requests of the control plane use."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from infra.base.config import NAME_PATTERN

ProcessName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Gbit = Annotated[float, Field(gt=0, le=10_000, description="speed of a link in Gbit/s")]
EARLIER_CURSOR: dict[str, Any] = {
    "description": "Deprecated: the same as the cursor, for one more release.",
    "json_schema_extra": {"deprecated": True},
}
"""Schema of the computed field ``version``, the name of the cursor in answers of earlier releases."""
