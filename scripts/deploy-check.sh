#!/usr/bin/env bash
# deploy-check.sh [FLAG of go test...]: tests the files of deploy/, and builds the image where
# an engine for that runs. The first run downloads and compiles Helm's, Kubernetes',
# Compose's and Prometheus' Go libraries. promtool and systemd-analyze are used where they
# are installed.
set -euo pipefail

cd "$(dirname "$0")/.."

BLOCKYARD_BIN=$PWD/bin
export BLOCKYARD_BIN
go -C deploy/check vet .
go -C deploy/check test -count=1 -v "$@" .

if docker info >/dev/null 2>&1; then
	docker build --quiet --tag blockyard:deploy-check .
	docker run --rm blockyard:deploy-check version
elif command -v buildah >/dev/null; then
	buildah build --quiet --tag blockyard:deploy-check .
else
	echo 'skip  the image: neither a Docker engine nor buildah is here'
fi
