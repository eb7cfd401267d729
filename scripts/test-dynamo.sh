#!/bin/sh
# Runs Blockyard beside an unmodified NVIDIA Dynamo; see docs/dynamo.md. The
# first run installs Dynamo (scripts/dynamo-env.sh). Arguments go to the test:
# --list, --only NAME..., --keep.
set -eu

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=${BLOCKYARD_BIN:-$PWD/bin/blockyard}
[ -x "$BLOCKYARD_BIN" ] || {
	echo "blockyard: $BLOCKYARD_BIN is missing: make build" >&2
	exit 1
}
export BLOCKYARD_BIN
# The server that the events travel over; a dependency already.
go build -o "$(dirname "$BLOCKYARD_BIN")/nats-server" github.com/nats-io/nats-server/v2
python=$(scripts/dynamo-env.sh)
exec "$python" interop/dynamo "$@"
