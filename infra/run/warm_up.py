"""Compiles the kernels that runs and tests use, in two parallel processes; what is compiled already costs nothing.

``make test`` runs it, so that no test pays for the compiler. It is optional, since a missing kernel is compiled when it
is first called.

    python -m infra.run.warm_up
"""

import subprocess
import sys

from dispatch.placement.decide import warm_up as warm_up_policy
from dispatch.progress.warm_up import warm_up_quality
from infra.base.parts import module
from ingest.batches.counting import count_present
from ingest.codec.structure import count_items, scan_structure
from ingest.codec.unpacking import warm_up as warm_up_unpacking
from ingest.samples import no_samples
from ingest.schema import load_schema
from ps.config import DenseRule, RowConfig
from ps.main import warm_up as warm_up_shard
from serving.rows.index import warm_up_index

SEED = 0
DIRECTORY_POLICIES = ("random", "het", "fae", "laia", "laia_adaptive")
"""Their time goes into the kernels of the directory, which are common to all policies."""
SOLVER_POLICIES = ("esd:0", "esd:0.5", "esd:1", "joint:elastic")


def warm_up_directory() -> None:
    for policy in DIRECTORY_POLICIES:
        warm_up_policy(policy, SEED)


def warm_up_others() -> None:
    """When it reaches the policies, most of the directory's kernels are ready."""
    scan_structure([b"{}"])
    count_items(b"[]", 1)
    schema = load_schema("synthetic")
    count_present(no_samples(schema.fields, schema.dense), schema)
    warm_up_unpacking()
    warm_up_index()
    warm_up_quality()
    for float_dtype in ("float32", "float64"):
        for dense in (DenseRule("adam"), DenseRule("sgd")):
            warm_up_shard(RowConfig.model_validate({"float_dtype": float_dtype}), dense)
    for policy in SOLVER_POLICIES:
        warm_up_policy(policy, SEED)


def main() -> None:
    """Without an argument this process does one half and a child the other."""
    if sys.argv[1:] == ["others"]:
        warm_up_others()
        return
    with subprocess.Popen([sys.executable, "-m", module("infra.run.warm_up"), "others"]) as others:
        warm_up_directory()
    sys.exit(others.returncode)


if __name__ == "__main__":
    main()
