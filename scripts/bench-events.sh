#!/usr/bin/env bash
# bench-events.sh [FLAG...]: measures the path of events; see "bin/blockyard bench
# events --help". Builds the nats-server of go.mod beside bin/blockyard, which must
# be there.
set -euo pipefail

cd "$(dirname "$0")/.."
go build -o bin/nats-server github.com/nats-io/nats-server/v2
exec bin/blockyard bench events "$@"
