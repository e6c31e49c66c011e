"""Settings of the API process."""

from pydantic import Field

from infra.config import Section


class ApiConfig(Section):
    """Where the control plane listens."""

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 for every interface of the machine"""
    port: int | None = Field(default=None, ge=0, le=65535)
    """port to listen on; 0 for any that is free; none for 8000, or any where that is taken"""
