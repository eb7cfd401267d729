#!/usr/bin/env bash
# image-run.sh runs inside a container of the image: agent, simulated engine and router with the image's own settings,
# as the image's user, until the router knows the engine. A process that ends early, or does not end in order, fails it.
set -euo pipefail

fail() {
	echo "blockyard: the image: $*" >&2
	tail -n 20 "$logs"/* >&2
	exit 1
}

logs=$(mktemp -d)
[ "$(id -u)" = 10001 ] || fail "the user is $(id -u), want 10001"
blockyard agent --node image >"$logs/agent" 2>&1 &
agent=$!
blockyard-lab sim-engine --worker-id 7 --agent-socket /run/blockyard/agent.sock --http 127.0.0.1:8101 >"$logs/engine" 2>&1 &
engine=$!
blockyard router --agents http://127.0.0.1:9400 >"$logs/router" 2>&1 &
router=$!

for ((i = 0; ; i++)); do
	blockyard top --once --router 127.0.0.1:8090 >"$logs/top" 2>&1 || true
	grep -q '^worker 7/0 .* exact' "$logs/top" && break
	for p in "$agent" "$engine" "$router"; do
		kill -0 "$p" || fail "a process has ended"
	done
	((i < 300)) || fail 'the router does not know the engine after 300 tries'
	sleep 0.2
done
for p in "$engine" "$router" "$agent"; do
	kill "$p"
	wait "$p" || fail "a process ends with status $?"
done
grep '^worker 7/0 ' "$logs/top"
