#!/bin/sh
# test-dynamo.sh [--list] [--only NAME...] [--keep]
#
# Runs Blockyard beside an unmodified NVIDIA Dynamo; see docs/dynamo.md. The first
# run installs Dynamo (scripts/dynamo-env.sh).
set -eu

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=${BLOCKYARD_BIN:-$PWD/bin/blockyard}
[ -x "$BLOCKYARD_BIN" ] || {
	echo "blockyard: $BLOCKYARD_BIN is missing: make build" >&2
	exit 1
}
export BLOCKYARD_BIN
# The events need a NATS server.
go build -o "$(dirname "$BLOCKYARD_BIN")/nats-server" github.com/nats-io/nats-server/v2
python=$(scripts/dynamo-env.sh)
PYTHONPATH=connector exec "$python" interop/dynamo "$@"
