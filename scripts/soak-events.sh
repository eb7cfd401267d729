#!/usr/bin/env bash
# soak-events.sh [FLAG...]: injects faults into the event path, and compares the
# router's index with the engines; see "bin/blockyard bench soak-events --help".
# Needs bin/blockyard, and builds bin/nats-server from go.mod.
set -euo pipefail

cd "$(dirname "$0")/.."
go build -o bin/nats-server github.com/nats-io/nats-server/v2
exec bin/blockyard bench soak-events "$@"
