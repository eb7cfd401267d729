#!/usr/bin/env bash
# events-env.sh: prints the path of a python with pyzmq, msgspec and nats-py, for
# the programs in interop/zmq and interop/nats.
#
# The first run makes a virtual environment from PyPI, pinned. An interrupted run
# continues when it is run again. $BLOCKYARD_EVENTS_ENV names the directory
# (blockyard-events in the user's cache).
set -euo pipefail

cd "$(dirname "$0")/.."
env=${BLOCKYARD_EVENTS_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-events}
python=$env/bin/python
pins=(pyzmq==27.1.0 msgspec==0.20.0 nats-py==2.12.0)
ready=$env/.ready-$(printf '%s' "${pins[*]}" | tr ' =' '-_')
# shellcheck source=scripts/pyenv.sh
. scripts/pyenv.sh

if [ ! -e "$ready" ]; then
	claim BLOCKYARD_EVENTS_ENV
	if [ ! -e "$ready" ]; then # another run may have made it meanwhile
		make_environment "the event programs' environment" 9 14
		"$python" -m pip install --quiet --disable-pip-version-check "${pins[@]}" >&2
		touch "$ready"
	fi
fi
echo "$python"
