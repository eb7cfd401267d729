#!/usr/bin/env bash
# events-env.sh: prints the path of a python with pyzmq, msgspec and nats-py, for
# the programs in interop/zmq and interop/nats.
#
# Makes the environment if it is not there yet, from PyPI, pinned, in
# $BLOCKYARD_EVENTS_ENV or the user's cache. May be interrupted and run again.
set -euo pipefail

env=${BLOCKYARD_EVENTS_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-events}
pins=(pyzmq==27.1.0 msgspec==0.20.0 nats-py==2.12.0)
ready=$env/.ready-$(printf '%s' "${pins[*]}" | tr ' =' '-_')

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

if [ ! -e "$ready" ]; then
	# Somebody else's environment is not filled.
	if [ -n "$(ls -A "$env" 2>/dev/null)" ] && [ ! -e "$env/.made-by-blockyard" ]; then
		fail "$env was not made by this script: empty it, or name another with BLOCKYARD_EVENTS_ENV"
	fi
	mkdir -p "$env"
	touch "$env/.made-by-blockyard"
	exec 9<"$env"
	flock 9 # two at a time would install over each other
	python3 -m venv "$env" >&2 || fail "python3 -m venv failed: on Debian and Ubuntu install python3-venv"
	"$env/bin/python" -m pip install --quiet --disable-pip-version-check "${pins[@]}" >&2
	touch "$ready"
fi
echo "$env/bin/python"
