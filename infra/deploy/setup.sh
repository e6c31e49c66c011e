#!/bin/sh
# Makes .venv with Freshet and its development tools, through uv, at the versions constraints.txt pins.
# Called by make; needs Python 3.11 to 3.13 only. Reads PYTHON and FRESHET_TORCH (see the Makefile) and writes STAMP.
set -eu
stamp=${STAMP:-.venv/.freshet-setup}

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

fail() {
    echo "set-up: $1" >&2
    exit 1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        suits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 to 3.13; name one that is, as in PYTHON=python3.12"
        python=$PYTHON
        return
    fi
    for python in python3 python3.13 python3.12 python3.11; do
        if suits "$python"; then return; fi
    done
    fail "no Python 3.11 to 3.13 found as python3, python3.13, python3.12 or python3.11; install one or set PYTHON"
}

# uv itself: the user's, or a private one from PyPI that touches nothing outside this folder.
find_uv() {
    for uv in uv build/uv/bin/uv; do
        if "$uv" --version >/dev/null 2>&1; then return; fi
    done
    echo "set-up: fetching uv" >&2
    rm -rf build/uv
    if "$python" -m venv build/uv >/dev/null 2>&1; then
        build/uv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
    else # Debian's python3 without python3-venv
        rm -rf build/uv
        "$python" -m pip install --quiet --disable-pip-version-check -c constraints.txt --target build/uv uv
    fi || fail "cannot fetch uv with pip; check the network, or install uv and run make again"
    uv=build/uv/bin/uv
}

# Keeps a working environment; remakes it if another interpreter was asked for.
make_environment() {
    if suits .venv/bin/python && [ -z "${PYTHON:-}" ]; then return; fi
    "$uv" venv --quiet --clear --python "$("$python" -c 'import sys; print(sys.executable)')" .venv
}

# Another torch build brings its own CUDA libraries, or none, and its own limit on setuptools: these pins step aside.
choose_constraints() {
    torch=${FRESHET_TORCH:-$(cat "$stamp" 2>/dev/null || true)}
    constraints=constraints.txt
    if [ -n "$torch" ]; then
        mkdir -p build
        constraints=build/constraints-torch.txt
        grep -v -E '^(torch|triton|nvidia-|cuda-|setuptools)' constraints.txt >"$constraints"
    fi
}

find_python
find_uv
choose_constraints
make_environment
echo "set-up: installing Freshet into .venv (the first time fetches a few GB where torch comes with CUDA)" >&2
"$uv" pip install --quiet --python .venv/bin/python -c "$constraints" -e ".[dev]" -e ./client ${torch:+"$torch"}
# What the commands load, so that the first of them need not compile it; all that is installed would take six times as long.
.venv/bin/python -c \
    "import api.main, dispatch.main, infra.run.cluster, infra.run.demo, ingest.main, ps.main, serving.main, trainer.main"
printf '%s' "$torch" >"$stamp"
