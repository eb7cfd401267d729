#!/usr/bin/env bash
# bench-events.sh [FLAG...]: measures the event path; see "bin/blockyard bench
# events --help". Needs bin/blockyard, and builds bin/nats-server from go.mod.
set -euo pipefail

cd "$(dirname "$0")/.."
go build -o bin/nats-server github.com/nats-io/nats-server/v2
exec bin/blockyard bench events "$@"
