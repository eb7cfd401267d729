#!/bin/bash
# Runs every fuzz target of the repository for a short time, one after the
# other: fuzz.sh [DURATION], 10 seconds each unless told otherwise.
set -euo pipefail

cd "$(dirname "$0")/.."
duration=${1:-10s}

go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r package; do
	{ go test -list '^Fuzz' "$package" </dev/null | grep '^Fuzz' || true; } | while read -r target; do
		echo "== $package $target"
		# By default one input is made smaller for up to a minute, which is all the time
		# that there is.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 20x "$package" </dev/null
	done
done
