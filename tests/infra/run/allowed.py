"""Whether this machine lets its tests make network namespaces."""

from functools import cache

from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.run.network import namespaces

NEEDED = "needs Linux with ip, tc and the right to make network namespaces"


@cache
def can_make_namespaces() -> bool:
    try:
        with namespaces([LinkGbit.of(1.0)]):
            return True
    except ConfigError:
        return False
