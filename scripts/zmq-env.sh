#!/usr/bin/env bash
# zmq-env.sh: prints the directory of a Python environment that has pyzmq and msgspec.
#
# Makes the project's own, .venv-zmq, from PyPI if it is not there yet; may be
# interrupted and run again. $BLOCKYARD_ZMQ_ENV names another one, which is used as it
# is if it has both. The tests of the ZMQ sink with a Python consumer run with
#
#   BLOCKYARD_ZMQ_ENV=$(scripts/zmq-env.sh) go test ./publisher/zmqsink
set -euo pipefail

pyzmq=27.1.0
msgspec=0.21.1

cd "$(dirname "$0")/.."
env=${BLOCKYARD_ZMQ_ENV:-$PWD/.venv-zmq}
python=$env/bin/python

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

has_both() {
	[ -x "$python" ] && "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("zmq") and u.find_spec("msgspec")))'
}

if ! has_both; then
	[ -z "${BLOCKYARD_ZMQ_ENV:-}" ] || fail "BLOCKYARD_ZMQ_ENV=$env has no pyzmq or no msgspec"
	command -v python3 >/dev/null || fail "python3 is missing"
	python3 -m venv "$env" >&2 || fail "python3 -m venv failed (Debian and Ubuntu: apt-get install python3-venv)"
	"$python" -m pip install --quiet --disable-pip-version-check "pyzmq==$pyzmq" "msgspec==$msgspec" >&2 ||
		fail "pip could not install pyzmq and msgspec"
	has_both || fail "$env has no pyzmq or no msgspec after the installation"
fi
echo "$env"
