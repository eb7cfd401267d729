#!/usr/bin/env bash
# docs-env.sh: prints the path of a python with Sphinx, MyST and the theme Furo, which make the
# documentation site.
#
# The first run makes a virtual environment from PyPI, pinned. An interrupted run
# continues when it is run again. $BLOCKYARD_DOCS_ENV names the directory
# (blockyard-docs in the user's cache).
set -euo pipefail

cd "$(dirname "$0")/.."
env=${BLOCKYARD_DOCS_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-docs}
python=$env/bin/python
pins=(sphinx==9.0.4 myst-parser==5.2.0 furo==2025.12.19)
ready=$env/.ready-$(printf '%s' "${pins[*]}" | tr ' =' '-_')
# shellcheck source=scripts/pyenv.sh
. scripts/pyenv.sh

if [ ! -e "$ready" ]; then
	claim BLOCKYARD_DOCS_ENV
	if [ ! -e "$ready" ]; then # another run may have made it meanwhile
		make_environment "the documentation site" 11 14
		"$python" -m pip install --quiet --disable-pip-version-check "${pins[@]}" >&2
		touch "$ready"
	fi
fi
echo "$python"
