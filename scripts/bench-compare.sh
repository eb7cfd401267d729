#!/bin/bash
# bench-compare.sh REF PACKAGE...
#
# Compares the benchmarks of the packages (./router/index) in the working tree and
# at commit REF, in a temporary worktree. The two sides run in turn, and every
# second round in reverse order, so that a slower machine slows both. benchstat
# prints the comparison. Its "~" means no significant difference.
#
# BENCH      regular expression of the benchmarks   (. for all)
# COUNT      rounds; benchstat wants at least 6     (6)
# BENCHTIME  time or iterations (100x) of a run     (1s)
set -euo pipefail

cd "$(dirname "$0")/.."

benchstat_version=v0.0.0-20260908200009-22c9c6c9d4da # of golang.org/x/perf

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

[ $# -ge 2 ] || fail 'REF and PKG are needed: make bench-compare REF=main PKG=./router/index'
ref=$1
shift
commit=$(git rev-parse --quiet --verify "$ref^{commit}") || fail "REF: \"$ref\" is no commit of this repository"
new=$PWD
scratch=$(mktemp -d)
old=$scratch/tree

clean() {
	git -C "$new" worktree remove --force "$old" 2>/dev/null || true
	rm -rf "$scratch"
}
trap clean EXIT

# binary SIDE PACKAGE prints the path of the package's test binary. The first call
# builds it.
binary() {
	local tree=${!1} path
	path=$scratch/$1/${2//\//_}.test
	if [ ! -e "$path" ]; then
		(cd "$tree" && go test -c -o "$path" "$2") >&2 || return 1
	fi
	[ -e "$path" ] || return 1
	echo "$path"
}

# measure SIDE PACKAGE runs the benchmarks once.
measure() {
	local tree=${!1} path
	path=$(binary "$1" "$2")
	(cd "$tree/$2" && "$path" -test.run '^$' -test.bench "${BENCH:-.}" -test.benchmem \
		-test.benchtime "${BENCHTIME:-1s}" -test.timeout 30m) >>"$scratch/$1.txt"
}

GOBIN=$scratch go install "golang.org/x/perf/cmd/benchstat@$benchstat_version"
git worktree add --quiet --detach "$old" "$commit"
mkdir "$scratch/old" "$scratch/new"
for package in "$@"; do
	[ -d "$new/$package" ] || fail "PKG: \"$package\" is no directory: name packages as ./router/index"
	[ -d "$old/$package" ] || fail "PKG: \"$package\" does not exist at $ref"
	for side in old new; do
		binary "$side" "$package" >/dev/null || fail "PKG: no test binary of \"$package\" (the $side side)"
	done
done

for ((round = 1; round <= ${COUNT:-6}; round++)); do
	sides=(old new)
	if ((round % 2 == 0)); then sides=(new old); fi
	for package in "$@"; do
		for side in "${sides[@]}"; do
			echo "round $round: $package, $side" >&2
			measure "$side" "$package"
		done
	done
done

cd "$scratch"
./benchstat "$(git -C "$new" rev-parse --short "$commit")=old.txt" "tree=new.txt"
