"""Generates the page of all metrics from the catalogue, so that it stays correct."""

import sys

from infra.base.metrics.catalogue import METRICS, MetricSpec

HEAD = """# Metrics

Every process serves these metrics to Prometheus, in addition to those of Python and its memory (`python_…`,
`process_…`). [operations.md](operations.md) says where, and how Prometheus finds them. A histogram has `_bucket`,
`_sum` and `_count`.

This page is printed by `python -m infra.base.metrics.reference`.

| metric | kind | process | labels | meaning |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """All metrics, in Markdown."""
    return HEAD + "".join(map(_line, METRICS))


def _line(metric: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {metric.process} | {labels} | {metric.text} |\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
