#!/bin/sh
# test-vllm.sh [--list] [--only NAME...] [--keep] [--plane c|python|both]
#
# Runs a real vLLM on CPU with the connector and a real agent; see connector/e2e.
# The first run installs vLLM (scripts/vllm-env.sh). $VLLM is the version of vLLM,
# if not the pinned one.
set -eu

cd "$(dirname "$0")/.."

agent=${BLOCKYARD_BIN:-bin/blockyard}
[ -x "$agent" ] || {
	echo "blockyard: $agent is missing: make build" >&2
	exit 1
}
# The engine's events need a NATS server.
go build -o "$(dirname "$agent")/nats-server" github.com/nats-io/nats-server/v2
python=$(scripts/vllm-env.sh ${VLLM:+"$VLLM"})
# These tests need numpy or the cases, or compare the connector with vLLM's own base classes.
# The machine of "make test" may lack all of it.
(cd connector && "$python" tests numpy_mover vllm_contract e2e_planes bench_figures)
PYTHONPATH=connector exec "$python" -m e2e "$@"
