"""Base classes of request bodies and answers, strict about names and types; answers of each resource are elsewhere."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

ItemT = TypeVar("ItemT")
Reason = Annotated[str, Field(default="", max_length=1000, description="why, for the record")]


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
