#!/usr/bin/env bash
# lmcache-env.sh PYTHON: prints a directory with LMCache's packages for PYTHONPATH.
# PYTHON has vLLM and what else LMCache needs. The first run installs the packages.
# $BLOCKYARD_LMCACHE_ENV names another directory. It is used unchanged when it has
# LMCache.
set -euo pipefail

cd "$(dirname "$0")/.."
env=${BLOCKYARD_LMCACHE_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-lmcache}
python=$1
. scripts/pyenv.sh

if [ ! -d "$env/lmcache" ]; then
	claim BLOCKYARD_LMCACHE_ENV
	# Its other requirements are in vLLM's environment, or belong to CUDA.
	[ -d "$env/lmcache" ] || "$python" -m pip install --quiet --disable-pip-version-check \
		--no-deps --target "$env" 'lmcache==0.5.6' aiofile caio aiofiles nvtx redis \
		sortedcontainers opentelemetry-exporter-prometheus >&2 || fail "pip could not install lmcache in $env"
fi
echo "$env"
