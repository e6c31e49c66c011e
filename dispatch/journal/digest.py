"""Digests by which two runs are compared: of settings, and of everything that the shards hold."""

from collections.abc import Mapping
from contextlib import closing

import msgspec
import numpy as np
import xxhash
import zmq

from dispatch.arrays import U64
from dispatch.job import DispatchJob
from ps.client import ShardClient

ROWS_AT_ONCE = 1 << 16


def digest_of(settings: Mapping[str, str]) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(sorted(settings.items())))


def digest_rows(job: DispatchJob, generation: int, keys: U64) -> str:
    """32 hex digits of key, value, state and version of every row, by row number; after a flush.

    Equal for runs with equal models, however many shards hold them.
    """
    digest = xxhash.xxh3_128()
    with zmq.Context() as context:
        client = ShardClient(context, job.shard_endpoints, job.rows, job.run, curve=job.curve)
        with closing(client):
            client.open(generation, 0)
            for first in range(0, keys.size, ROWS_AT_ONCE):
                numbers = np.arange(first, min(keys.size, first + ROWS_AT_ONCE))
                rows_KT, versions_K = client.peek(numbers)
                for array in (keys[numbers], rows_KT, versions_K):
                    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
