"""Values that several requests of the control plane carry."""

from typing import Annotated

from pydantic import Field, StringConstraints

from infra.base.config import NAME_PATTERN

ProcessName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Gbit = Annotated[float, Field(gt=0, le=10_000, description="speed of a link in Gbit/s")]
