"""A click log as somebody might bring it, in every format that is read."""

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CLICKED = "clicked"
TIME = "ts"


def click_rows(count: int) -> list[dict[str, Any]]:
    """Rows with a taste for some items, an amount, a list, a constant and an id that never recurs."""
    draw = random.Random(7)
    liking = [draw.gauss(0, 2) for _ in range(40)]
    rows = []
    for number in range(count):
        item = draw.randrange(40)
        row = {
            TIME: 1_731_600_000.25 + number,
            CLICKED: int(draw.random() < 1 / (1 + math.exp(-liking[item]))),
            "user": f"u{draw.randrange(50)}",
            "item": item,
            "price": round(draw.lognormvariate(3, 1), 2),
            "score": round(draw.uniform(-1, 1), 3),
            "request": f"{draw.getrandbits(64):x}",
            "version": "2.1",
        }
        rows.append(row)
    return rows


def write_clicks(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes rows as the suffix says: events in JSON, plain objects if the name begins with flat, CSV or Parquet."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        lines = rows if path.name.startswith("flat") else [as_event(row) for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def as_event(row: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name not in (TIME, CLICKED)}
    return {"event_time": row[TIME], "label": row[CLICKED], "fields": fields}
