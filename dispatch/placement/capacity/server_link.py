"""What a row costs where all workers reach the shards through one link.

While n workers transfer at once, that link gives each an equal share, and what a slow worker cannot use of its share
goes to the others. So a worker's rows move at the speed of its own link or of its share, whichever is less. If the
shared link is narrow, all rows cost the same, and decisions minimise their number alone; if it is as wide as all
others together, it does not matter.

Legend: n workers.
"""

from collections.abc import Sequence

import numpy as np

from dispatch.placement.arrays import F64, Bool


def shared_costs(row_cost_n: F64, server_cost: float, uses_link_n: Bool) -> F64:
    """Cost of a row in one direction for each worker, by its own link and by its share of the one of all shards.

    server_cost: of a row over that link, in the same unit; 0: it does not limit. uses_link_n: who has samples; the
    others move little, and need no share.
    """
    if not server_cost:
        return row_cost_n
    rates = np.sort(1.0 / row_cost_n[uses_link_n])
    slower = np.concatenate(([0.0], rates.cumsum()[:-1]))
    shares = (1.0 / server_cost - slower) / np.arange(rates.size, 0, -1)
    limits = shares[shares < rates]  # the first is the share of all whose links are faster than it
    return np.maximum(row_cost_n, 1.0 / limits[0]) if limits.size else row_cost_n


def ring_saves(dense_bytes: int, links_gbit: Sequence[float], server_gbit: float) -> float:
    """Seconds of a step that a ring saves against the hub in summing dense gradients, by the links alone.

    Over the hub every worker sends all of them at its share of the shards' link, and receives as many at the same time;
    in a ring of n it sends 2(n-1)/n of them, at the speed of the slowest link. So without a limit of the shards' link
    nothing is saved. Nor is it where links are not known.
    """
    if not server_gbit or not all(links_gbit):
        return 0.0
    second_n = 1.0 / np.array(links_gbit)
    hub = float(shared_costs(second_n, 1.0 / server_gbit, np.full(second_n.size, True)).max())
    ring = 2 * (second_n.size - 1) / second_n.size * float(second_n.max())
    return 8e-9 * dense_bytes * (hub - ring)
