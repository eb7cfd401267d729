#!/usr/bin/env bash
# bench-index.sh [FLAG...]: measures the router's index and its decisions; see
# "bin/blockyard bench index --help". OPLOG names the operation logs to replay,
# separated by spaces. Without OPLOG the benchmark generates logs. Needs
# bin/blockyard.
set -euo pipefail

cd "$(dirname "$0")/.."
logs=()
for log in ${OPLOG:-}; do
  logs+=(--log "$log")
done
exec bin/blockyard bench index "${logs[@]}" "$@"
