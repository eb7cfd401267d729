#!/usr/bin/env bash
# deploy-check.sh [FLAG of go test...]: tests the files of deploy/, and builds and runs the image where
# that is possible: see image-check.sh. The first run downloads and compiles Helm's, Kubernetes',
# Compose's and Prometheus' Go libraries. promtool and systemd-analyze are used where they
# are installed.
set -euo pipefail

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=$PWD/bin
export BLOCKYARD_BIN
go -C deploy/check vet .
go -C deploy/check test -count=1 -v "$@" .

scripts/image-check.sh
