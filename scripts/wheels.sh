#!/bin/bash
# wheels.sh [OUTPUT]
#
# Builds the wheels of the connector and of the drop-in names of KVBM into OUTPUT
# (default: dist). The connector gets one wheel for each machine that a C compiler
# here can build for: x86_64, and aarch64 (Debian: gcc-aarch64-linux-gnu).
set -euo pipefail

cd "$(dirname "$0")/.."
out=${1:-dist}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m pip wheel --quiet --no-deps --wheel-dir "$out" ./connector/kvbm
python3 -m pip wheel --quiet --no-deps --wheel-dir "$scratch" ./connector
python3 scripts/wheels.py "$out" "$scratch"/blockyard_connector-*.whl
