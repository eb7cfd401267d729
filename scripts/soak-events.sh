#!/usr/bin/env bash
# soak-events.sh [FLAG...]: breaks the path of events and compares what is left;
# see "bin/blockyard bench soak-events --help". Builds the nats-server of go.mod
# beside bin/blockyard, which must be there.
set -euo pipefail

cd "$(dirname "$0")/.."
go build -o bin/nats-server github.com/nats-io/nats-server/v2
exec bin/blockyard bench soak-events "$@"
