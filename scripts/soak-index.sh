#!/usr/bin/env bash
# soak-index.sh [FLAG...]: runs the router's index and scheduler for a long time and
# measures their memory; see "bin/blockyard bench soak-index --help". Needs
# bin/blockyard.
set -euo pipefail

cd "$(dirname "$0")/.."
exec bin/blockyard bench soak-index "$@"
