#!/bin/bash
# fuzz.sh [DURATION] runs every fuzz target of the repository, one after the other,
# each for DURATION (10s).
set -euo pipefail

cd "$(dirname "$0")/.."
duration=${1:-10s}

go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r package; do
	{ go test -list '^Fuzz' "$package" </dev/null | grep '^Fuzz' || true; } | while read -r target; do
		echo "== $package $target"
		# By default go minimizes one input for up to a minute, longer than DURATION.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 20x "$package" </dev/null
	done
done
