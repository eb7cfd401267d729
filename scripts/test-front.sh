#!/bin/sh
# test-front.sh [--list] [--only NAME...] [--keep]
#
# Runs the front door before real vLLM servers on CPU, with the official OpenAI
# client; see interop/front. The first run installs vLLM (scripts/vllm-env.sh), the
# client, AIPerf (scripts/load-env.sh) and Envoy (scripts/envoy-env.sh). $VLLM is the
# version of vLLM, if not the pinned one.
set -eu

openai=3.54.0

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=${BLOCKYARD_BIN:-$PWD/bin/blockyard}
[ -x "$BLOCKYARD_BIN" ] || {
	echo "blockyard: $BLOCKYARD_BIN is missing: make build" >&2
	exit 1
}
export BLOCKYARD_BIN
python=$(scripts/vllm-env.sh ${VLLM:+"$VLLM"})
path=interop:connector
# vLLM requires some version of the client, and all packages that the client requires.
installed=$("$python" -c 'import importlib.metadata as m; print(m.version("openai"))')
if [ "$installed" != "$openai" ]; then
	client=$PWD/.venv-front/openai-$openai
	if [ ! -d "$client" ]; then
		echo "blockyard: installing the OpenAI client $openai into $client" >&2
		rm -rf "$client.part"
		"$python" -m pip install --quiet --no-deps --target "$client.part" "openai==$openai"
		mv "$client.part" "$client"
	fi
	path=$client:$path
fi
PYTHONPATH=$path exec "$python" -m front "$@"
