#!/bin/bash
# Runs every check of the repository once: format, vet, all Go tests, the
# connector's tests, a short demo, and the demo's self-test. Packages with
# goroutines run under the race detector. A passed check prints one line, a failed
# check its whole output. The last line is "N passed, N failed". The exit status is
# 1 when anything failed.
set -euo pipefail

cd "$(dirname "$0")/.."

# Packages whose tests run under the race detector. The others have no goroutines.
concurrent='^github.com/blockyard-ai/blockyard/(agent|examples|blockmgr|consolidator|publisher|router|internal/proto|lab)(/|$)'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tally=$scratch/tally
: >"$tally"

# check NAME COMMAND... runs a command that counts as one test, and prints the
# output of a failed command.
check() {
	local name=$1 start=$SECONDS
	shift
	if "$@" >"$scratch/output" 2>&1; then
		printf 'ok    %-52s  %18ds\n' "$name" $((SECONDS - start))
		echo '1 0' >>"$tally"
	else
		printf 'FAIL  %s (%s)\n' "$name" "$*"
		cat "$scratch/output"
		echo '0 1' >>"$tally"
	fi
}

# tests FLAG... runs go test and adds its counts to the tally. Missing counts are a
# failure, because then the report program itself has failed.
tests() {
	local before after
	before=$(wc -l <"$tally")
	go test -json -timeout 10m "$@" | "$scratch/testreport" -tally "$tally" || true
	after=$(wc -l <"$tally")
	if [ "$after" -ne $((before + 1)) ]; then
		printf 'FAIL  no counts from: go test %s\n' "$*"
		echo '0 1' >>"$tally"
	fi
}

unformatted() {
	local files
	files=$(gofmt -l .) || return 1 # a file that does not parse
	[ -z "$files" ] || {
		printf 'run "make fmt"; these files are not formatted:\n%s\n' "$files"
		return 1
	}
}

# connector runs the connector's own tests, which need only Python. A machine
# without Python skips them, because the agent does not need Python.
connector() {
	if ! command -v python3 >/dev/null || ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
		echo 'skip  the connector: no Python 3.10 or later'
		return
	fi
	local before after
	before=$(wc -l <"$tally")
	timeout 600 python3 connector/tests --tally "$tally" || true
	after=$(wc -l <"$tally")
	if [ "$after" -ne $((before + 1)) ]; then
		printf 'FAIL  no counts from: python3 connector/tests\n'
		echo '0 1' >>"$tally"
	fi
	if command -v cc >/dev/null; then
		check 'connector/native, sanitizers and fuzz' scripts/test-native.sh 1
	else
		echo 'skip  connector/native: no C compiler'
	fi
	echo 'skip  the connector in a real vLLM: run "make test-vllm"'
}

summary() {
	awk '{ passed += $1; failed += $2 } END { printf "%d passed, %d failed\n", passed, failed; exit failed > 0 || passed == 0 }' "$tally"
}

go build -o "$scratch/testreport" ./scripts/testreport
packages=$(go list ./...)

check gofmt unformatted
check 'go vet' go vet ./...
# shellcheck disable=SC2046 # lists of words
tests $(grep -Ev "$concurrent" <<<"$packages")
# shellcheck disable=SC2046
tests -race $(grep -E "$concurrent" <<<"$packages")
connector
if [ -x bin/blockyard ]; then
	check 'blockyard demo' timeout 300 bin/blockyard demo --only ours
	check 'blockyard demo --hybrid' timeout 300 bin/blockyard demo --hybrid --requests 120
	check 'blockyard demo --selftest' timeout 120 bin/blockyard demo --selftest
else
	printf 'FAIL  bin/blockyard is missing: run "make build" first\n'
	echo '0 1' >>"$tally"
fi
summary
