"""The base of every configuration section: frozen, and strict about names it does not know."""

import re
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from infra.base.errors import ConfigError

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of runs and processes: they become file names."""
ENDPOINT = re.compile(r"tcp://(?:\[[^\s\]/]+\]|[^\s:/\[\]]+):(?P<port>\*|\d{1,5})|(?:ipc|inproc)://\S+")
LAST_PORT = 65535
PRIVATE = "private"
"""Used instead of an endpoint: a Unix socket that only the owner of the run can reach."""
Names = TypeVar("Names", str, list[str] | None)


def check_names(names: Names) -> Names:
    """Returns the name or names of processes as given; raises ConfigError for one that cannot be a file name."""
    for name in [names] if isinstance(names, str) else names or ():
        if not re.fullmatch(NAME_PATTERN, name):
            raise ConfigError(
                f"the name {name!r} cannot be used; expected 1 to 64 letters, digits, dots, dashes and underscores, a "
                "letter or digit first; choose another"
            )
    return names


def check_endpoint(endpoint: str, may_be_private: bool = False) -> str:
    """Returns an endpoint as given; raises ConfigError for one that is malformed."""
    if may_be_private and endpoint == PRIVATE:
        return endpoint
    found = ENDPOINT.fullmatch(endpoint)
    port = found["port"] if found is not None else None
    if found is None or (port is not None and port != "*" and int(port) > LAST_PORT):
        raise ConfigError(
            f"{endpoint!r} is no endpoint; expected {f'{PRIVATE}, or ' if may_be_private else ''}tcp://HOST:PORT, with "
            f"a port up to {LAST_PORT} or * for any that is free; correct it"
        )
    return endpoint


class Section(BaseModel):
    """One ``[section]`` of the settings; a misspelt field is an error, never a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """In the environment and on the command line a list is written 5,5,0.5, and none may be the
        name of a choice.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        if value is None and "none" in get_args(annotation):
            return "none"
        if get_origin(annotation) is tuple and isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
