#!/bin/bash
# release.sh [--allow-skip] VERSION
#
# Makes the files of a release in dist/VERSION:
#
#   - for each platform, an archive of the binaries, manual pages, shell completions, licence
#     and changelog
#   - for each binary, a list of its modules (SBOM, CycloneDX 1.6)
#   - the connector's wheels
#   - how these were built (in-toto statement, SLSA provenance v1), not signed
#   - SHA256SUMS of all files
#
# BUILDER_ID is the URI of who builds, for the statement: docs/release.md.
#
# A foreign platform needs a C compiler and libzmq for it (Debian:
# gcc-aarch64-linux-gnu and libzmq3-dev:arm64). Without them, the script names the
# platform and ends before it builds anything; with --allow-skip it leaves the platform out. With qemu-user-static
# it also starts the foreign binary.
#
# The same commit, toolchain and libzmq give the same archives.
set -euo pipefail

cd "$(dirname "$0")/.."

allow_skip=
case ${1-} in
--allow-skip)
	allow_skip=1
	shift
	;;
-*)
	echo "release.sh: $1: unknown; want --allow-skip or VERSION" >&2
	exit 2
	;;
esac
version=${1:?VERSION is missing}
: "${BUILDER_ID:?is missing: want the URI of who builds, such as https://ci.example/builders/1}"
out=dist/$version
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CGO_ENABLED=1

# toolchain ARCH sets CC and PKG_CONFIG_LIBDIR for linux/ARCH. On failure it prints
# the missing tool.
toolchain() {
	local triple
	unset PKG_CONFIG_LIBDIR CC
	if [ "$1" = "$(go env GOHOSTARCH)" ]; then
		return
	fi
	case $1 in
	amd64) triple=x86_64-linux-gnu ;;
	arm64) triple=aarch64-linux-gnu ;;
	esac
	if ! command -v "$triple-gcc" >/dev/null; then
		echo "skip  linux/$1: no cross C compiler ($triple-gcc)"
		return 1
	fi
	export CC=$triple-gcc PKG_CONFIG_LIBDIR=/usr/lib/$triple/pkgconfig
	if ! pkg-config --exists libzmq; then
		echo "skip  linux/$1: no libzmq for it in $PKG_CONFIG_LIBDIR"
		return 1
	fi
}

# runs ARCH PROGRAM checks that a program starts and shows the version. A foreign one needs qemu-user-static.
runs() {
	local emulator=()
	if [ "$1" != "$(go env GOHOSTARCH)" ]; then
		case $1 in
		amd64) emulator=(qemu-x86_64-static) ;;
		arm64) emulator=(qemu-aarch64-static) ;;
		esac
		if ! command -v "${emulator[0]}" >/dev/null; then
			echo "note  linux/$1: built and not run: no ${emulator[0]}"
			return
		fi
	fi
	"${emulator[@]}" "$2" version | grep -qF "$version" || {
		echo "release.sh: linux/$1: $2 does not show the version $version" >&2
		return 1
	}
}

# archive ARCH builds the binaries and packs them.
archive() {
	local name=blockyard-$version-linux-$1
	mkdir "$out/$name"
	GOOS=linux GOARCH=$1 go build -ldflags "-s -w -X main.version=$version" -o "$out/$name/" ./cmd/blockyard ./cmd/blockyard-lab
	runs "$1" "$out/$name/blockyard"
	"$scratch/sbom" -version "$version" "$out/$name/blockyard" >"$out/$name.cdx.json"
	"$scratch/sbom" -version "$version" "$out/$name/blockyard-lab" >"$out/blockyard-lab-$version-linux-$1.cdx.json"
	cp -r LICENSE CHANGELOG.md "$scratch/man" "$scratch/completions" "$out/$name/"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$name" |
		gzip -n9 >"$out/$name.tar.gz"
	rm -r "${out:?}/$name"
	echo "ok    linux/$1: $name.tar.gz"
}

platforms=()
for arch in amd64 arm64; do
	if (toolchain "$arch"); then # its variables are not for the builds below
		platforms+=("$arch")
	elif [ -z "$allow_skip" ]; then
		echo "release.sh: a release has all platforms: install what is missing, or leave linux/$arch out with --allow-skip" >&2
		exit 1
	fi
done
if [ -n "$(git status --porcelain)" ]; then
	echo "release.sh: the tree has changes: commit them first, because the provenance names commit $commit" >&2
	exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
go build -o "$scratch/" ./scripts/sbom ./scripts/provenance

# A foreign platform's binary does not run here, and has the same flags.
go build -o "$scratch/blockyard" ./cmd/blockyard
mkdir "$scratch/man" "$scratch/completions"
"$scratch/blockyard" man --dir "$scratch/man"
for shell in bash zsh fish; do
	"$scratch/blockyard" completion "$shell" >"$scratch/completions/blockyard.$shell"
done

rm -rf "${out:?}"
mkdir -p "$out"
for arch in "${platforms[@]}"; do
	(toolchain "$arch" && archive "$arch")
done
scripts/wheels.sh "$out"
"$scratch/provenance" -version "$version" -commit "$commit" -builder "$BUILDER_ID" "$out" >"$scratch/statement"
mv "$scratch/statement" "$out/blockyard-$version.provenance.json"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "$out:"
cat "$out/SHA256SUMS"
