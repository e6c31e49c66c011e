"""The base of every configuration section: frozen, and strict about names it does not know."""

from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """One ``[section]`` of the settings; a misspelt field is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def split_list(cls, value: Any, info: ValidationInfo) -> Any:
        """In the environment and on the command line a list is written 5,5,0.5."""
        is_list = get_origin(cls.model_fields[str(info.field_name)].annotation) is tuple
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if is_list and isinstance(value, str)
            else value
        )
