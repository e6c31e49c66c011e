"""The digest by which the settings of two runs are compared."""

from collections.abc import Mapping

import msgspec
import xxhash


def digest_of(settings: Mapping[str, str]) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(sorted(settings.items())))
