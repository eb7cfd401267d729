#!/usr/bin/env bash
# previous.sh [REF]: builds the programs of an earlier version, once, and prints their directory.
# REF is a tag or a commit other than HEAD. By default it is the last tag before HEAD, or without one the
# last commit with another minor version of the connector protocol.
set -euo pipefail

cd "$(dirname "$0")/.."

ref=${1:-}
if [ -z "$ref" ]; then
	ref=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null ||
		git log -1 -G 'VersionMinor *= ' --format='%h^' -- internal/proto/frame.go)
fi
commit=$(git rev-parse --verify --quiet "$ref^{commit}") || {
	echo "blockyard: REF $ref: no such commit in this clone" >&2
	exit 1
}
if [ "$commit" = "$(git rev-parse HEAD)" ]; then
	echo "blockyard: REF $ref: is HEAD, want an earlier commit" >&2
	exit 1
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/blockyard-previous
out=$cache/$commit
if [ ! -x "$out/blockyard-lab" ]; then
	mkdir -p "$cache"
	source=$(mktemp -d)
	programs=$(mktemp -d "$cache/build.XXXXXX")
	trap 'rm -rf "$source" "$programs"' EXIT
	git archive "$commit" | tar -x -C "$source"
	version=$(git describe --tags --always "$commit")
	go -C "$source" build -ldflags "-X main.version=$version" -o "$programs/" ./cmd/blockyard ./cmd/blockyard-lab >&2
	chmod 755 "$programs"
	# Another run may have built the same version meanwhile: its programs are as good.
	mv -T "$programs" "$out" 2>/dev/null || [ -x "$out/blockyard-lab" ] || {
		echo "blockyard: $out: cannot be replaced by the programs of $ref" >&2
		exit 1
	}
fi
echo "$out"
