#!/bin/bash
# test-gpu.sh [--json FILE] [--help]
#
# Tests and measures the connector's copies on a real GPU, in under eight minutes and
# without network: bandwidth by page size beside one plain pinned copy, the rate of
# pinning, the bytes of each layout, and kill -9 of either side. Needs the CUDA driver,
# Python 3.10 and a C compiler. Where one is missing, one line says which, and the
# script succeeds.
set -euo pipefail

if ! command -v python3 >/dev/null; then
	echo 'skip  make test-gpu: no python3'
	exit 0
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
	echo "skip  make test-gpu: $(python3 --version), want 3.10 or later"
	exit 0
fi
cd "$(dirname "$0")/.."
PYTHONPATH=connector exec timeout 470 python3 -m bench.gpu "$@"
