#!/usr/bin/env bash
# dynamo-env.sh: prints the path of a python that can import NVIDIA Dynamo.
#
# The first run makes a virtual environment from PyPI, pinned, about 320 MB:
# Dynamo's two wheels, and the imports of its router, mocker, publisher and
# indexer. An interrupted run continues when it is run again.
# $BLOCKYARD_DYNAMO_ENV names the directory (~/.cache/blockyard-dynamo).
set -euo pipefail

dynamo=1.6.1
# Imports of the wheels, and of the test's own programs: frames (pyzmq, msgspec,
# msgpack) and hashes (xxhash).
others=(uvloop==0.22.1 pydantic==2.13.5 pyyaml==6.0.3 packaging==26.0 msgspec==0.21.1 pyzmq==27.1.0 msgpack==1.1.2 xxhash==3.6.0 nats-py==2.12.0)

cd "$(dirname "$0")/.."
env=${BLOCKYARD_DYNAMO_ENV:-$HOME/.cache/blockyard-dynamo}
python=$env/bin/python
ready=$env/.ready-dynamo-$dynamo-1
# shellcheck source=scripts/pyenv.sh
. scripts/pyenv.sh

if [ ! -e "$ready" ]; then
	claim BLOCKYARD_DYNAMO_ENV
	if [ ! -e "$ready" ]; then # another run may have made it meanwhile
		echo "blockyard: installing Dynamo $dynamo into $env; this takes about 320 MB" >&2
		make_environment "Dynamo $dynamo" 10 13
		"$python" -m pip install --quiet --disable-pip-version-check --no-deps "ai-dynamo==$dynamo" "ai-dynamo-runtime==$dynamo" >&2
		"$python" -m pip install --quiet --disable-pip-version-check "${others[@]}" >&2
		"$python" -c 'import dynamo.llm, dynamo.runtime' >&2 || fail "the environment $env cannot import dynamo"
		touch "$ready"
	fi
fi
echo "$python"
