#!/bin/sh
# bench-connector.sh [--quick] [--only PART...] [--dir DIR] [--keep]
#
# Measures the connector in a real vLLM on CPU: hooks, load start, time to the
# first token; see connector/bench. The first run installs vLLM
# (scripts/vllm-env.sh).
set -eu

cd "$(dirname "$0")/.."

[ -x "${BLOCKYARD_BIN:-bin/blockyard}" ] || {
	echo "blockyard: ${BLOCKYARD_BIN:-bin/blockyard} is missing: make build" >&2
	exit 1
}
python=$(scripts/vllm-env.sh)
PYTHONPATH=connector exec "$python" -m bench "$@"
