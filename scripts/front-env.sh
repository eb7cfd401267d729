#!/usr/bin/env bash
# front-env.sh: prints the directory of the programs vllm-router and smg. Installs
# them on first use. BLOCKYARD_FRONT_ENV names an environment that has them already,
# or the directory for a new one.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/pyenv.sh

env="${BLOCKYARD_FRONT_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-front}"
python="$env/bin/python"

complete() { [ -x "$env/bin/vllm-router" ] && [ -x "$env/bin/smg" ]; }

if ! complete; then
	claim BLOCKYARD_FRONT_ENV
	make_environment "the routers' environment" 9 13
	complete || "$python" -m pip install --quiet --disable-pip-version-check \
		'vllm-router==0.1.17' 'smg==1.13.0' >&2 || fail "pip could not install vllm-router and smg in $env"
fi
echo "$env/bin"
