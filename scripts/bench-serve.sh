#!/usr/bin/env bash
# bench-serve.sh [FLAG...]: serves conversations with real vLLM engines on CPU, through
# each router and with each cache tier; see interop/serve and --help. Needs
# bin/blockyard. The first run installs vLLM, vllm-router, smg and LMCache.
set -euo pipefail

cd "$(dirname "$0")/.."
python=$(scripts/vllm-env.sh)
peers=$(scripts/front-env.sh)
lmcache=$(scripts/lmcache-env.sh "$python")
BLOCKYARD_BIN=${BLOCKYARD_BIN:-$PWD/bin/blockyard} PYTHONPATH=interop:connector \
	exec "$python" -m serve --peers "$peers" --lmcache "$lmcache" "$@"
