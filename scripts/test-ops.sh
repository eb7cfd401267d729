#!/usr/bin/env bash
# test-ops.sh [FLAG of go test...]: what operators use, in real processes. REF names the version for
# the upgrade tests: see previous.sh. $BLOCKYARD_TEST_SHOTS names a directory for screenshots.
# The last line has the number of cases: each test and each of its parts is one. The script fails when a
# case fails, when no case of a step passes, and when a case of the upgrade or of the console is skipped.
set -euo pipefail

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=$PWD/bin
export BLOCKYARD_BIN
log=$(mktemp)
trap 'rm -f "$log"' EXIT
flags=("$@")
failed=0

# run TITLE MODULE ARGUMENTS OF go test...
run() {
	local before title=$1 module=$2
	shift 2
	echo "== $title"
	before=$(cases PASS)
	go -C "$module" test -count=1 -timeout 30m -v "$@" "${flags[@]}" 2>&1 | tee -a "$log" || failed=1
	if [ "$(cases PASS)" = "$before" ]; then
		echo "blockyard: $title: no case passed" >&2
		failed=1
	fi
}

# complete is run for a step whose needs this script has provided: no case may be skipped.
complete() {
	local before
	before=$(cases SKIP)
	run "$@"
	if [ "$(cases SKIP)" != "$before" ]; then
		echo "blockyard: $1: a case was skipped" >&2
		failed=1
	fi
}

# cases RESULT prints how many cases have a result.
cases() { grep -cE "^ *--- $1: " "$log" || true; }

BLOCKYARD_TEST_CHROMIUM=$(scripts/chromium-env.sh)
BLOCKYARD_TEST_PREVIOUS=$(scripts/previous.sh "${REF:-}")
export BLOCKYARD_TEST_CHROMIUM BLOCKYARD_TEST_PREVIOUS
go build -o bin/nats-server github.com/nats-io/nats-server/v2
run 'reload' . -run 'Reload|SIGHUP|TokensAreReadAgain' ./internal/command ./internal/command/process ./internal/control
run 'admin, manual pages, completion' . -run 'Admin|Manual|Script' ./internal/command ./internal/command/completion
run 'doctor' . ./internal/command/doctor
complete 'upgrade and rolling restart' . ./interop/upgrade
run 'deploy' deploy/check .
complete 'documents' . ./interop/pages
run 'documented commands' . -run 'Documented' ./lab/cli
complete 'web console' . ./interop/console

passed=$(cases PASS) skipped=$(cases SKIP)
echo "test-ops: cases=$((passed + skipped + $(cases FAIL))) passed=$passed skipped=$skipped"
exit "$failed"
