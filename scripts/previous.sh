#!/usr/bin/env bash
# previous.sh [REF]: builds the programs of an earlier version, once, and prints their directory.
# REF is a tag or a commit. By default it is the last tag, or without one the last commit with another
# minor version of the connector protocol.
set -euo pipefail

cd "$(dirname "$0")/.."

ref=${1:-}
if [ -z "$ref" ]; then
	ref=$(git describe --tags --abbrev=0 2>/dev/null ||
		git log -1 -G 'VersionMinor *= ' --format='%h^' -- internal/proto/frame.go)
fi
commit=$(git rev-parse --verify --quiet "$ref^{commit}") || {
	echo "blockyard: REF $ref: no such commit in this clone" >&2
	exit 1
}
out=${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-previous/$commit
if [ ! -x "$out/blockyard-lab" ]; then
	source=$(mktemp -d)
	trap 'rm -rf "$source"' EXIT
	git archive "$commit" | tar -x -C "$source"
	go -C "$source" build -ldflags "-X main.version=$ref" -o "$out/" ./cmd/blockyard ./cmd/blockyard-lab >&2
fi
echo "$out"
