# shellcheck shell=bash
# pyenv.sh: functions for the scripts that make a Python environment. They source
# this file in the repository's root, and set `env`, the environment's directory,
# and `python`, its interpreter.

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

# find_python NAME LOW HIGH prints a python of version 3.LOW to 3.HIGH. NAME is the
# product that needs this version.
find_python() {
	local minor name names=(python3)
	for ((minor = $3; minor >= $2; minor--)); do names+=("python3.$minor"); done
	for name in "${names[@]}"; do
		if command -v "$name" >/dev/null && "$name" -c "import sys; sys.exit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2>/dev/null; then
			echo "$name"
			return
		fi
	done
	fail "$1 needs python 3.$2 to 3.$3, and python3 is $(python3 --version 2>&1 || true)"
}

# make_environment NAME LOW HIGH makes a virtual environment with pip. It completes
# the environment of an interrupted run.
make_environment() {
	"$python" -m pip --version >/dev/null 2>&1 && return
	local base
	base=$(find_python "$@")
	"$base" -m venv "$env" >/dev/null 2>&1 && return
	# Debian has the module in a package of its own.
	scripts/deps.sh "$base-venv" || fail "$base -m venv failed: on Debian and Ubuntu install $base-venv"
	"$base" -m venv "$env" >&2 || fail "$base -m venv failed"
}

# claim VARIABLE creates the directory and takes its lock, because two installs at a
# time would overwrite each other. A directory with files of others is refused.
# VARIABLE names another directory.
claim() {
	if [ -n "$(ls -A "$env" 2>/dev/null)" ] && [ ! -e "$env/.made-by-blockyard" ]; then
		fail "$env was not made by this script: empty it, or name another with $1"
	fi
	mkdir -p "$env"
	touch "$env/.made-by-blockyard"
	exec 9<"$env"
	flock 9
}
