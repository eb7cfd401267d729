#!/usr/bin/env bash
# dynamo-env.sh: prints the path of a python that can import NVIDIA Dynamo.
#
# Makes the virtual environment if it is not there yet: Dynamo's two wheels from
# PyPI and what its router, mocker, publisher and indexer need of others, pinned,
# about 320 MB. May be interrupted and run again. $BLOCKYARD_DYNAMO_ENV names the
# directory; the default is ~/.cache/blockyard-dynamo.
set -euo pipefail

dynamo=1.6.1
# What the wheels import in the parts that are used, and what the test's own
# programs need: frames (pyzmq, msgspec, msgpack) and hashes (xxhash).
others=(uvloop==0.22.1 pydantic==2.13.5 pyyaml==6.0.3 packaging==26.0 msgspec==0.21.1 pyzmq==27.1.0 msgpack==1.1.2 xxhash==3.6.0 nats-py==2.12.0)

cd "$(dirname "$0")/.."
env=${BLOCKYARD_DYNAMO_ENV:-$HOME/.cache/blockyard-dynamo}
python=$env/bin/python
ready=$env/.ready-dynamo-$dynamo-1

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

# find_python prints a python that the wheels are built for.
find_python() {
	local name
	for name in python3 python3.13 python3.12 python3.11 python3.10; do
		if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
			echo "$name"
			return
		fi
	done
	fail "Dynamo $dynamo needs python 3.10 to 3.13, and python3 is $(python3 --version 2>&1 || true)"
}

# make_environment leaves a virtual environment with pip, also when an earlier
# run was interrupted in the middle of it.
make_environment() {
	"$python" -m pip --version >/dev/null 2>&1 && return
	local base
	base=$(find_python)
	"$base" -m venv "$env" >/dev/null 2>&1 && return
	# Debian keeps the module in a package of its own.
	scripts/deps.sh "$base-venv" || fail "$base -m venv failed: on Debian and Ubuntu install $base-venv"
	"$base" -m venv "$env" >&2 || fail "$base -m venv failed"
}

if [ ! -e "$ready" ]; then
	# Somebody else's environment is neither filled nor emptied.
	if [ -n "$(ls -A "$env" 2>/dev/null)" ] && [ ! -e "$env/.made-by-blockyard" ]; then
		fail "$env was not made by this script: empty it, or name another with BLOCKYARD_DYNAMO_ENV"
	fi
	mkdir -p "$env"
	touch "$env/.made-by-blockyard"
	exec 9<"$env"
	flock 9 # two at a time would install over each other
	if [ ! -e "$ready" ]; then
		echo "blockyard: installing Dynamo $dynamo into $env; this takes about 320 MB" >&2
		make_environment
		"$python" -m pip install --quiet --disable-pip-version-check --no-deps "ai-dynamo==$dynamo" "ai-dynamo-runtime==$dynamo" >&2
		"$python" -m pip install --quiet --disable-pip-version-check "${others[@]}" >&2
		"$python" -c 'import dynamo.llm, dynamo.runtime' >&2 || fail "the environment $env cannot import dynamo"
		touch "$ready"
	fi
fi
echo "$python"
