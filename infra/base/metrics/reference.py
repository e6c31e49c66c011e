"""The page that describes the metrics, made from the catalogue, so that it stays true."""

import sys

from infra.base.metrics.catalogue import METRICS, MetricSpec

HEAD = """# Metrics

Every process serves these to Prometheus, beside those of its Python and its memory (`python_…`, `process_…`). Where,
and how Prometheus finds them, is in [operations.md](operations.md). A histogram has `_bucket`, `_sum` and `_count`.

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
