#!/bin/bash
# test-gpu.sh [--json FILE]
#
# Tests and measures the connector's copies on a real GPU, in under eight minutes and
# without network: bytes of both directions in both layouts, pinned and unpinned;
# bandwidth by page size beside one plain pinned copy; the rate of pinning. Needs the
# CUDA driver, a C compiler and Python 3.10. Without a GPU the script says so and
# succeeds.
set -euo pipefail

cd "$(dirname "$0")/.."
if ! python3 -c 'import ctypes; cuda = ctypes.CDLL("libcuda.so.1"); raise SystemExit(cuda.cuInit(0))' 2>/dev/null; then
	echo 'skip  make test-gpu: no CUDA driver with a GPU on this machine'
	exit 0
fi
PYTHONPATH=connector exec timeout 470 python3 -m bench.gpu "$@"
