"""How fast a long journal becomes rows, and how fast they are read: ``python -m tests.api.store.measure URL``."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from api.store.store import SqlStore
from benchmarks.control.past import PAGE, steps_page


async def measure(url: str, steps: int) -> None:
    store = await SqlStore.open(url)
    spent = busy = 0.0
    for first in range(1, steps + 1, PAGE):
        page = steps_page("run", first, min(steps, first + PAGE - 1))
        start, began = time.perf_counter(), time.process_time()
        await store.runs.project("run", page)
        spent += time.perf_counter() - start
        busy += time.process_time() - began
    sys.stdout.write(f"projected {steps / spent:,.0f} steps/s, {steps / busy:,.0f} a second of processor time\n")
    reads: dict[str, Callable[[], Awaitable[Any]]] = {
        "all steps, 500 points": lambda: store.runs.steps("run", points=500),
        "all steps, 1000 points": lambda: store.runs.steps("run", points=1000),
        "the last 10,000, 500 points": lambda: store.runs.steps("run", steps - 10_000, points=500),
        "run": lambda: store.runs.get("run"),
    }
    for name, read in reads.items():
        times = []
        for _ in range(20):
            start = time.perf_counter()
            await read()
            times.append(1000 * (time.perf_counter() - start))
        sys.stdout.write(f"{name}: median {sorted(times)[10]:.1f} ms, slowest {max(times):.1f} ms\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(measure(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000))
