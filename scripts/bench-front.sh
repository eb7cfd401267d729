#!/usr/bin/env bash
# bench-front.sh [FLAG...]: measures front doors beside each other; see
# "bin/blockyard bench front --help". Needs bin/blockyard,
# and installs vllm-router and smg on first use. PEERS=none leaves them out.
set -euo pipefail

cd "$(dirname "$0")/.."
# Open streams need a descriptor each, two in the router.
ulimit -n "$(ulimit -Hn)"
if [ "${PEERS:-}" != none ]; then
	peers=$(scripts/front-env.sh)
	set -- --peers "$peers" "$@"
fi
exec bin/blockyard bench front "$@"
