#!/usr/bin/env bash
# bench-index.sh [FLAG...]: measures the router's index and its decisions; see
# "bin/blockyard bench index --help". OPLOG names op logs to replay, separated by
# spaces; without it, logs are made. bin/blockyard must be there.
set -euo pipefail

cd "$(dirname "$0")/.."
logs=()
for log in ${OPLOG:-}; do
  logs+=(--log "$log")
done
exec bin/blockyard bench index "${logs[@]}" "$@"
