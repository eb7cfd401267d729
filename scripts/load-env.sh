#!/usr/bin/env bash
# load-env.sh: prints the path of the program aiperf, NVIDIA's load generator. Installs
# it from PyPI on first use, about 1 GB. BLOCKYARD_LOAD_ENV names an environment that
# has it already, or the directory for a new one.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/pyenv.sh

env="${BLOCKYARD_LOAD_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-load}"
python="$env/bin/python"

if [ ! -x "$env/bin/aiperf" ]; then
	claim BLOCKYARD_LOAD_ENV
	make_environment "AIPerf's environment" 11 13
	[ -x "$env/bin/aiperf" ] || "$python" -m pip install --quiet --disable-pip-version-check \
		'aiperf==0.13.0' >&2 || fail "pip could not install aiperf in $env"
fi
echo "$env/bin/aiperf"
