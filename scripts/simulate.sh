#!/usr/bin/env bash
# simulate.sh [FLAG...]: runs "bin/blockyard-lab simulate". With --calibrate it finds
# vLLM, which the first run installs. Needs bin/blockyard-lab.
set -euo pipefail

cd "$(dirname "$0")/.."
case " $* " in
*" --calibrate"*)
	python=$(scripts/vllm-env.sh)
	export PYTHONPATH=interop:connector
	set -- --python "$python" "$@"
	;;
esac
exec bin/blockyard-lab simulate "$@"
