#!/bin/sh
# Runs a real vLLM on CPU against the connector and a real agent; see
# connector/e2e. The first run installs vLLM (scripts/vllm-env.sh). Arguments go
# to the test: --list, --only NAME..., --keep. $VLLM is another version of vLLM
# than the pinned one.
set -eu

cd "$(dirname "$0")/.."

agent=${BLOCKYARD_BIN:-bin/blockyard}
[ -x "$agent" ] || {
	echo "blockyard: $agent is missing: make build" >&2
	exit 1
}
# The server that the engine's events travel over; a dependency already.
go build -o "$(dirname "$agent")/nats-server" github.com/nats-io/nats-server/v2
python=$(scripts/vllm-env.sh ${VLLM:+"$VLLM"})
# What needs a part of vLLM's environment that the machine of make test may lack.
(cd connector && "$python" tests numpy_mover)
PYTHONPATH=connector exec "$python" -m e2e "$@"
