"""The plain training loop of a run's model, for those who compare with it or time it."""

import torch

from infra.run.settings import Settings
from trainer.reference import Reference


def reference_of(settings: Settings, device: torch.device) -> Reference:
    """The loop on a device."""
    schema = settings.event_schema
    return Reference(
        rows=settings.scaled_rows,
        model=settings.model,
        fields=schema.singles,
        dense=schema.dense,
        seed=settings.seed,
        device=device,
        crosses=len(schema.crosses),
        pools=schema.pools,
        labels=max(1, len(schema.labels)),
    )
