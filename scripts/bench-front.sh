#!/usr/bin/env bash
# bench-front.sh [FLAG...]: measures front doors beside each other; see
# "bin/blockyard bench front --help". Needs bin/blockyard, and installs vllm-router,
# smg and NVIDIA Dynamo on first use. PEERS=none leaves them out. Without Dynamo its
# row has the reason.
set -euo pipefail

cd "$(dirname "$0")/.."
# Open streams need a descriptor each, two in the router.
ulimit -n "$(ulimit -Hn)"
if [ "${PEERS:-}" != none ]; then
	peers=$(scripts/front-env.sh)
	set -- --peers "$peers" "$@"
	why=$(mktemp)
	if python=$(scripts/dynamo-env.sh 2>"$why"); then
		export PYTHONPATH="$PWD/interop/dynamo"
		set -- --dynamo "$python" "$@"
	else
		cat "$why" >&2
		set -- --dynamo-missing "$(tail -n 1 "$why")" "$@"
	fi
	rm -f "$why"
fi
exec bin/blockyard bench front "$@"
