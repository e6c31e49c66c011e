"""Bases of all models; unknown names and values of another type are refused."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infra.base.config import NAME_PATTERN

ItemT = TypeVar("ItemT")
ProcessName = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=64)]
Reason = Annotated[str, Field(default="", max_length=1000, description="why, for the record")]
Gbit = Annotated[float, Field(gt=0, le=10_000, description="Speed of a link in Gbit/s.")]


class Body(BaseModel):
    """Base of request bodies."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Answer(BaseModel):
    """Base of answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Problem(Answer):
    """Why a request was not carried out (RFC 9457)."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not found",
                    "status": 404,
                    "detail": "there is no run 'nosuch' here; expected one of GET /v1/runs",
                }
            ]
        },
    )

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] | None = None
    """What is wrong, and where: in a request that does not fit its schema, or in events."""


class Listed(Answer, Generic[ItemT]):
    """One page of a list."""

    items: list[ItemT]
    next: str | None
    """Value to pass as after for the next page; null: this is the last one."""
