"""All settings of Freshet. A flag overrides the environment, which overrides one TOML file.

``--set stream.batch=1024`` on the command line, ``FRESHET_STREAM__BATCH=1024`` in the environment and ``batch = 1024``
under ``[stream]`` in the file mean the same. A mistake is reported in one line, before anything starts. The effective
settings of a run are stored in its folder, and its processes read them from there. Secrets are not stored: those
processes get them through the environment (``secret_environment``).
"""

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import structlog
from crc32c import crc32c
from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from api.config import ApiConfig
from dispatch.config import DispatchConfig, MemoryConfig, QualityConfig
from infra.base.config import NAME_PATTERN, Section
from infra.base.errors import ConfigError
from infra.base.faults import ALLOWED, FAULT, read_faults
from infra.base.process import SUPERVISED, write_whole
from infra.base.telemetry import MASK, SECRET_NAME, LogFormat, LogLevel, describe_text
from ingest.config import StreamConfig
from ingest.kafka.config import SECRETS, KafkaConfig
from ingest.schema import Schema, load_schema, without_crosses
from ps.config import CheckpointConfig, PsConfig, RowConfig
from serving.config import ServingConfig
from trainer.config import ModelConfig, TrainerConfig

STORED = "settings.json"
CHECKSUM = "checksum"
"""Entry of the stored settings by which a change is detected."""
NONE = "none"
"""Means "no value" in the environment and in --set."""
PREFIX = "FRESHET_"
KAFKA = "FRESHET_KAFKA"
"""Addresses of running brokers, host:port,…: short for kafka.servers; if set, no broker is started."""
API_URL = "FRESHET_API_URL"
"""Address of the API that commands use."""
TOKEN = "FRESHET_TOKEN"
"""Secret of the token that commands send."""
CA_FILE = "FRESHET_CA_FILE"
"""File of the certificate authorities that commands trust."""
CLIENT = (API_URL, TOKEN, CA_FILE)
NOT_SETTINGS = ("FRESHET_TORCH", "FRESHET_DATA", SUPERVISED, KAFKA, FAULT, ALLOWED, *CLIENT)
"""Variables with that prefix that are not settings."""


class TelemetryConfig(Section):
    """Logs and metrics of a process."""

    log_level: LogLevel = "info"
    """Least severe level that is logged."""
    log_format: LogFormat = "console"
    """Lines for people, or JSON lines."""
    metrics_host: str = "127.0.0.1"
    """Address of the Prometheus endpoints."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the Prometheus endpoint; 0 lets each process choose a free one."""
    trace_spans: int = Field(default=0, ge=0, le=10_000_000)
    """Newest spans of work that each process keeps, and writes to trace/NAME.json in the run's folder when it ends, for
    Perfetto or chrome://tracing; 0: none.
    """


class RayConfig(Section):
    """Where the processes of 'freshet up --ray' may run."""

    shard_cpus: float = Field(default=1.0, ge=0, le=1024, allow_inf_nan=False)
    """Processors that Ray reserves for each shard; shards are spread over the nodes that are not edge nodes (label
    freshet-role=edge).
    """
    worker_cpus: float = Field(default=1.0, ge=0, le=1024, allow_inf_nan=False)
    """Processors that Ray reserves for each worker; also its number of threads, unless trainer.threads is set."""
    worker_gpus: float = Field(default=0.0, ge=0, le=16, allow_inf_nan=False)
    """GPUs that Ray reserves for each worker; workers without one compute on the processor."""
    server_cpus: float = Field(default=1.0, ge=0, le=1024, allow_inf_nan=False)
    """Processors that Ray reserves for each prediction server, if api.database and serving.host let it leave the node
    of the API.
    """
    workers_on: Literal["any", "core", "edge"] = "any"
    """On which nodes workers run: any, those that are not edge nodes (core), or only those that are (edge)."""


RENAMED = {"cuts": "checkpoints"}
"""Sections by their names in earlier releases, which are still accepted."""
EARLIER: Mapping[str, Mapping[str, Any]] = {
    "stream": {"first_batch": 0, "crosses": False},
    "rows": {"wide_accumulator": 0.0, "chunks": 0, "utility": "gradient", "half_life_steps": 4000},
    "model": {"scale_rate": 0.0, "label_smoothing": 0.0},
}
"""What releases did that did not have these settings yet: the runs that they began go on like that."""


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_parse_none_str=NONE,
        enable_decoding=False,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    run: str = Field(default="local", pattern=NAME_PATTERN)
    """Name of the run; every message carries it."""
    folder: Path = Path("runs/local")
    """The run's folder: journal, logs, settings, results."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of start values of rows and weights, and of everything else that is random."""
    curve_folder: Path | None = None
    """Folder with CURVE keys made by 'freshet keys'; not set: connections are not encrypted."""
    stream: StreamConfig = StreamConfig()
    kafka: KafkaConfig = KafkaConfig()
    dispatch: DispatchConfig = DispatchConfig()
    rows: RowConfig = RowConfig()
    memory: MemoryConfig = MemoryConfig()
    quality: QualityConfig = QualityConfig()
    ps: PsConfig = PsConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    model: ModelConfig = ModelConfig()
    trainer: TrainerConfig = TrainerConfig()
    api: ApiConfig = ApiConfig()
    serving: ServingConfig = ServingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    ray: RayConfig = RayConfig()

    @model_validator(mode="before")
    @classmethod
    def _use_present_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Renames sections that had other names in earlier releases, in settings of old runs and of users."""
        for old, new in RENAMED.items():
            if old in values:
                values = {**values, new: {**values[old], **values.get(new, {})}}
                del values[old]
        return values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Drops pydantic's own sources: only ``load_settings`` reads the environment."""
        return (init_settings,)

    @property
    def event_schema(self) -> Schema:
        schema = load_schema(self.stream.schema_name)
        return schema if self.stream.crosses else without_crosses(schema)

    @property
    def scaled_rows(self) -> RowConfig:
        """The row settings as workers and shards use them."""
        return self.rows.of_run(self.stream.batch, self.event_schema.fields)


def threads_of(settings: Settings) -> int:
    """The torch threads of one worker: divides the cores among the workers of this machine, so that none wait for a
    core.
    """
    return settings.trainer.threads or max(1, usable_cores() // settings.dispatch.workers)


def taken_cores(settings: Settings, has_gpu: Callable[[], bool]) -> int:
    """How many of this process's cores the workers of this machine compute on, if cores were dealt out to them."""
    device = settings.trainer.device
    if not settings.trainer.threads or device == "cuda" or (device == "auto" and has_gpu()):
        return 0
    elsewhere = (os.cpu_count() or 1) - usable_cores()
    return max(0, settings.dispatch.workers * settings.trainer.threads - elsewhere)


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_settings(
    file: Path | None = None, overrides: Iterable[str] = (), defaults: Mapping[str, Any] | None = None, **values: Any
) -> Settings:
    """Settings from a TOML file, then the environment, then ``section.name=value`` overrides, then keyword values.

    ``defaults`` are the preferences of a command; every other source overrides them.
    """
    check_environment(os.environ)
    read_faults(os.environ)  # before anything starts
    merged: dict[str, Any] = {}
    _merge(merged, defaults or {})
    _merge(merged, read_toml(file) if file is not None else {})
    _merge(merged, read_environment())
    for override in overrides:
        _merge(merged, _parse_override(override))
    _merge(merged, values)
    for old, new in RENAMED.items():
        if old in merged or any(name.upper().startswith(f"{PREFIX}{old}__".upper()) for name in os.environ):
            structlog.get_logger().warning(f"settings {old}.* are called {new}.* now; rename them where they are set")
    return _validated(merged)


def read_environment() -> dict[str, Any]:
    """The settings given by environment variables."""
    named: dict[str, Any] = {}
    if servers := os.environ.get(KAFKA):
        named = {"kafka": {"servers": servers}}
    source = EnvSettingsSource(Settings)
    source.env_vars = {_present(name): value for name, value in source.env_vars.items() if name != KAFKA.lower()}
    _merge(named, source())
    return named


def _present(variable: str) -> str:
    """The current name of a variable, in lower case as pydantic has it."""
    for old, new in RENAMED.items():
        before = f"{PREFIX}{old}__".lower()
        if variable.startswith(before):
            return f"{PREFIX}{new}__".lower() + variable.removeprefix(before)
    return variable


def names_brokers() -> bool:
    """Whether the environment names running Kafka brokers, so that none needs to be started."""
    return bool(os.environ.get(KAFKA))


def secret_environment(settings: Settings) -> dict[str, str]:
    """Variables that give the processes of a run the secrets that its stored settings omit."""
    values = {name: getattr(settings.kafka, name) for name in SECRETS}
    return {_variable(name): value.get_secret_value() for name, value in values.items() if isinstance(value, SecretStr)}


def _variable(secret: str) -> str:
    return f"{PREFIX}KAFKA__{secret.upper()}"


def store_settings(settings: Settings) -> Path:
    """Writes the effective settings into the run's folder; the counterpart of ``read_stored``.

    Only this user may read them, because the URL of a database may contain a password.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    path = settings.folder / STORED
    stored = settings.model_dump(mode="json")
    write_whole(path, json.dumps({CHECKSUM: _checksum(stored), **stored}, indent=2) + "\n", is_private=True)
    return path


def read_stored(folder: Path) -> Settings:
    """The settings a run was started with; only secrets are taken from the environment."""
    path = folder / STORED
    try:
        stored = json.loads(path.read_bytes())
        if stored.pop(CHECKSUM, None) != _checksum(stored):
            raise ValueError(f"{path} has changed since the run was started, or another version of Freshet wrote it")
        secrets = {name: os.environ[_variable(name)] for name in SECRETS if _variable(name) in os.environ}
        _merge(stored, {"kafka": secrets})
        for section, values in EARLIER.items():
            stored[section] = {**values, **stored.get(section, {})}
        return Settings.model_validate(stored)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"no settings of a run in {path}: {error}; expected the folder of 'freshet up'; correct --run"
        ) from error


def _checksum(stored: Mapping[str, Any]) -> int:
    """Checksum of the settings as values, independent of how they are written."""
    return int(crc32c(json.dumps(stored, sort_keys=True).encode()))


def read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read settings file {file}: {error.strerror}; expected a file that can be read; correct --config"
        ) from error
    except (ValueError, RecursionError) as error:  # TOML syntax, not UTF-8, too many digits, too deep nesting
        raise ConfigError(
            f"settings file {file} is not TOML: {error}; expected name = value under [section]; correct that line"
        ) from error


def check_environment(environment: Iterable[str]) -> None:
    """Raises ConfigError for a variable that looks like a setting but is not: it would be ignored silently."""
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name.upper() in NOT_SETTINGS:
            continue
        first, *rest = name[len(PREFIX) :].lower().split("__")
        field = Settings.model_fields.get(RENAMED.get(first, first))
        if field is None or bool(rest) != is_section(field):
            raise ConfigError(
                f"environment variable {name} sets nothing; expected {PREFIX}NAME or {PREFIX}SECTION__NAME, as in "
                f"{PREFIX}STREAM__BATCH; correct or unset it ('freshet settings --defaults' prints every setting)"
            )


def _parse_override(override: str) -> dict[str, Any]:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ConfigError(
            f"--set {override!r} is not a setting; expected section.name=value, as in stream.batch=1024; correct it"
        )
    return _nested(name.split("."), text)


def _nested(path: list[str], text: str) -> dict[str, Any]:
    value: Any = None if text.lower() == NONE else text
    for part in reversed(path):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            _merge(into[name], value)
        else:
            into[name] = value


def _validated(values: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_explained(detail) for detail in error.errors()[:3])) from error


def _explained(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    name = ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = ", ".join(sorted(_known_at(path[:-1])))
        return f"setting {name} = {_shown(path, detail)} does not exist; expected one of: {known}; correct its name"
    if isinstance(cause := detail.get("ctx", {}).get("error"), ConfigError):
        return f"setting {name}: {cause}"
    wrong = detail["msg"][0].lower() + detail["msg"][1:]
    where = f"--set {name}=…, FRESHET_{'__'.join(path).upper()} or the settings file"
    return f"setting {name} = {_shown(path, detail)} is wrong: {wrong}; correct it where it is set: {where}"


def _shown(path: list[str], detail: Any) -> str:
    """The value; masked if it is a secret, or may be one under a misspelt name."""
    is_unknown = detail["type"] == "extra_forbidden" and path[0] == "kafka"
    is_secret = is_unknown or SECRET_NAME.search(path[-1]) is not None
    return MASK if is_secret else describe_text(repr(detail["input"]))


def _known_at(path: list[str]) -> Iterable[str]:
    model: type[BaseModel] = Settings
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return model.model_fields


def is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
