#!/usr/bin/env bash
# test-ops.sh: what operators use, in real processes. The web console in a headless
# Chromium: interop/console. $BLOCKYARD_TEST_SHOTS names a directory for screenshots.
set -euo pipefail

cd "$(dirname "$0")/.."

BLOCKYARD_TEST_CHROMIUM=$(scripts/chromium-env.sh)
export BLOCKYARD_TEST_CHROMIUM
go test -count=1 -timeout 30m -v ./interop/console "$@"
