"""Checks before any process of a run is started: if they fail, nothing has been created yet."""

import socket

from dispatch.dense import check_reduce, needs_ring
from dispatch.job import check_replicas, prune_terms
from dispatch.placement.capacity.room import check_room
from dispatch.placement.policies.registry import parse_spec
from dispatch.protocol import unencrypted
from infra.base.errors import ConfigError
from infra.base.wire import check_local, load_curve
from infra.run.settings import Settings
from ingest.streams.plugged import try_source
from trainer.config import check_cross
from trainer.models.size import dense_weights


def check_start(settings: Settings) -> None:
    """Raises ConfigError for settings with which one of the processes would fail."""
    schema = settings.event_schema
    check_cross(settings.model, schema.vectors * settings.rows.dim + schema.dense)
    check_plugged(settings)
    check_wide(settings)
    settings.dispatch.check_parking()
    check_caches(settings)
    settings.memory.check_expiry(settings.dispatch.lookahead)
    settings.quality.places(settings.event_schema)
    prune_terms(settings.rows, settings.memory, settings.stream.batch)
    policy = settings.dispatch.policy
    check_replicas(settings.rows, policy, has_hot_set=parse_spec(policy).needs.hot_share > 0)
    check_ports(settings)
    check_endpoints(settings)
    check_host("telemetry.metrics_host", settings.telemetry.metrics_host)
    check_host("api.host", settings.api.host)
    if settings.curve_folder is not None:
        for name in ("server", *(f"worker-{number}" for number in range(settings.dispatch.workers))):
            load_curve(settings.curve_folder, name)
    check_encryption(settings)


def plugins_of(settings: Settings) -> dict[str, str]:
    """The settings that name code of other packages, with its name."""
    model, policy, source = settings.model, settings.dispatch.policy, settings.stream
    return {
        **({"model.name": model.name} if model.is_plugged else {}),
        **({"dispatch.policy": policy} if parse_spec(policy).is_plugged else {}),
        **({"stream.source": source.source} if source.is_plugged else {}),
    }


def check_plugged(settings: Settings) -> None:
    """Raises ConfigError for code of other packages that cannot be loaded or used; loads it and, for a model, torch."""
    schema = settings.event_schema
    parse_spec(settings.dispatch.policy).try_out()
    if settings.stream.is_plugged:
        try_source(settings.stream)
    if settings.model.is_plugged:
        labels = max(1, len(schema.labels))
        dense_weights(settings.model, schema.vectors, settings.rows.dim, schema.dense, len(schema.crosses), labels)


def check_wide(settings: Settings) -> None:
    """Raises ConfigError for crosses of rows that have no wide weight."""
    if (crosses := settings.event_schema.crosses) and not settings.rows.wide:
        raise ConfigError(
            f"schema {settings.stream.schema_name!r} has {len(crosses)} crosses, and rows.wide is false; expected rows "
            "with a wide weight, since the model uses nothing else of a cross; set rows.wide=true or "
            "stream.crosses=false"
        )


def check_caches(settings: Settings) -> None:
    """Raises CacheTooSmall, which is a ConfigError, for caches that cannot hold a micro-batch."""
    dispatch = settings.dispatch
    needs = parse_spec(settings.dispatch.policy).needs
    check_room(
        cache_rows=dispatch.cache_rows,
        batch=settings.stream.batch,
        workers=dispatch.workers,
        fields=settings.event_schema.fields,
        shares=dispatch.share_bounds if needs.elastic else None,
        hot_share=needs.hot_share,
    )


def check_ports(settings: Settings) -> None:
    """Raises ConfigError for a port that the processes of one machine would have to share."""
    if port := settings.telemetry.metrics_port:
        raise ConfigError(
            f"telemetry.metrics_port = {port} is one port for all processes of this machine; expected 0, with which "
            f"each process chooses a free port and writes it to {settings.folder}/endpoints/NAME.metrics; unset it"
        )


def check_endpoints(settings: Settings) -> None:
    """Raises ConfigError for too few or too many shards, or an address that is not safe without keys."""
    shards = settings.ps.shards
    endpoints = settings.ps.endpoints
    if len(endpoints) not in (0, shards):
        raise ConfigError(
            f"ps.endpoints = {list(endpoints)} for ps.shards = {shards}; expected one per shard, or none; correct one"
        )
    if settings.curve_folder is None:
        dispatch = settings.dispatch
        own = dispatch.endpoint, dispatch.status_endpoint, dispatch.control_endpoint, dispatch.feed_endpoint
        for endpoint in (*own, *endpoints):
            check_local(endpoint)


def check_encryption(settings: Settings) -> None:
    """Raises ConfigError if keys are in use and workers would sum gradients unencrypted, or if they cannot sum."""
    has_keys = settings.curve_folder is not None
    workers = settings.dispatch.workers
    reduce = settings.trainer.reduce
    has_hot_set = parse_spec(settings.dispatch.policy).needs.ring
    check_reduce(reduce, settings.dispatch.policy, has_hot_set)
    if has_keys and workers > 1 and not settings.trainer.unencrypted_reduce and needs_ring(reduce, has_hot_set):
        raise unencrypted(workers)


def check_host(name: str, host: str) -> None:
    """Raises ConfigError unless this machine can listen at the address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{name} = {host!r} cannot be listened on: {error}; expected an address of this machine, as 127.0.0.1; "
            "correct it"
        ) from error
