#!/bin/sh
# deps.sh [PACKAGE...]
#
# Checks Go, a C compiler, pkg-config, and libzmq with its headers. Installs the
# missing Debian packages, and the named packages. Silent when nothing is missing.
# Every failure is one line that says what to do.
set -eu

go_minor=26 # Go 1.x that go.mod asks for
libzmq_min=4.1

cd "$(dirname "$0")/.."

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

# as_root runs a command as root, or fails without asking for a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

can_be_root() {
	[ "$(id -u)" -eq 0 ] || { command -v sudo && sudo -n true; } >/dev/null 2>&1
}

check_go() {
	command -v go >/dev/null 2>&1 || fail "Go is missing: install Go 1.$go_minor or later from https://go.dev/dl/"
	# Inside the module, go prints the toolchain that it switches to. Where a switch
	# is forbidden, go fails, and the second command prints the installed version.
	found=$(go env GOVERSION 2>/dev/null) || found=$(cd / && go env GOVERSION)
	minor=${found#go1.}
	minor=${minor%%[!0-9]*}
	if [ "${minor:-0}" -lt "$go_minor" ]; then
		fail "Go 1.$go_minor or later is needed, but this is $found: install it from https://go.dev/dl/"
	fi
}

have_compiler() {
	compiler=${CC:-$(go env CC)}
	command -v "${compiler%% *}" >/dev/null 2>&1 # without its flags
}

have_pkg_config() { command -v "${PKG_CONFIG:-pkg-config}" >/dev/null 2>&1; }

have_libzmq() { have_pkg_config && "${PKG_CONFIG:-pkg-config}" --exists "libzmq >= $libzmq_min"; }

# missing_packages prints the Debian packages of the missing tools.
missing_packages() {
	have_compiler || printf '%s ' gcc libc6-dev
	have_pkg_config || printf '%s ' pkg-config
	have_libzmq || printf '%s ' libzmq3-dev
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@"
}

install_packages() {
	echo "blockyard: installing $*" >&2
	log=$(mktemp)
	trap 'rm -f "$log"' EXIT
	# A new machine has empty or old package lists. An update takes time, so it runs
	# only after a failure.
	if apt_install "$@" >"$log" 2>&1; then
		return
	fi
	if as_root apt-get -o DPkg::Lock::Timeout=120 update >>"$log" 2>&1 && apt_install "$@" >>"$log" 2>&1; then
		return
	fi
	cat "$log" >&2
	fail "apt-get could not install $*; the lines above say why"
}

check_go
packages="$(missing_packages)$*"
if [ -n "$packages" ]; then
	packages=${packages% }
	if ! command -v apt-get >/dev/null 2>&1; then
		fail "missing: $packages (Debian's names); install a C compiler, pkg-config and libzmq >= $libzmq_min with headers"
	fi
	can_be_root || fail "missing: $packages; run: sudo apt-get install -y $packages"
	# shellcheck disable=SC2086 # a list of words
	install_packages $packages
	packages=$(missing_packages)
	[ -z "$packages" ] || fail "still missing after apt-get: $packages"
fi
