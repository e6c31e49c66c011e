"""The decorator of every numba kernel, and where compiled kernels are kept.

numba's own cache notices a change of a kernel's file, but not of a kernel in another file that it calls: after an
upgrade it would go on running the old one. Here the compiled code is kept under a fingerprint of all sources that hold
kernels, so a change of any of them compiles everything anew; what other versions left behind is removed.
"""

import hashlib
import shutil
from pathlib import Path

import numba
from numba import njit

ROOT = Path(__file__).resolve().parent
FOLDERS = ("dispatch", "ingest/codec", "ps")
PREFIX = "kernels-"


def fingerprint(root: Path) -> str:
    """Changes with any source file of the folders that hold kernels, and with numba itself."""
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def choose_folder(root: Path, keep: Path) -> Path:
    """The folder of this version's kernels; those of other versions in the same place go."""
    chosen = keep / f"{PREFIX}{fingerprint(root)}"
    for old in keep.glob(f"{PREFIX}*"):
        if old != chosen:
            shutil.rmtree(old, ignore_errors=True)
    return chosen


numba.config.CACHE_DIR = str(choose_folder(ROOT.parent, ROOT / "__pycache__"))  # type: ignore[attr-defined]

kernel = njit(cache=True, nogil=True)
"""plain arrays in and out, compiled once a version, the GIL released"""
