#!/bin/bash
# release.sh VERSION
#
# Makes the files of a release in dist/VERSION:
#
#   - for each platform, an archive of the binaries, manual pages, shell completions, licence
#     and changelog
#   - for each binary, a list of its modules (SBOM, CycloneDX 1.6)
#   - the connector's wheels
#   - SHA256SUMS of all files
#
# A foreign platform needs a C compiler and libzmq for it (Debian:
# gcc-aarch64-linux-gnu and libzmq3-dev:arm64). Without them, the script skips the
# platform and says so.
#
# The same commit, toolchain and libzmq give the same archives.
set -euo pipefail

cd "$(dirname "$0")/.."

version=${1:?VERSION is missing}
out=dist/$version
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

# archive ARCH builds the binaries and packs them.
archive() {
	local name=blockyard-$version-linux-$1
	mkdir "$out/$name"
	GOOS=linux GOARCH=$1 go build -ldflags "-s -w -X main.version=$version" -o "$out/$name/" ./cmd/blockyard ./cmd/blockyard-lab
	"$scratch/sbom" -version "$version" "$out/$name/blockyard" >"$out/$name.cdx.json"
	"$scratch/sbom" -version "$version" "$out/$name/blockyard-lab" >"$out/blockyard-lab-$version-linux-$1.cdx.json"
	cp -r LICENSE CHANGELOG.md "$scratch/man" "$scratch/completions" "$out/$name/"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$out" -cf - "$name" |
		gzip -n9 >"$out/$name.tar.gz"
	rm -r "${out:?}/$name"
	echo "ok    linux/$1: $name.tar.gz"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
go build -o "$scratch/sbom" ./scripts/sbom

# A foreign platform's binary does not run here, and has the same flags.
go build -o "$scratch/blockyard" ./cmd/blockyard
mkdir "$scratch/man" "$scratch/completions"
"$scratch/blockyard" man --dir "$scratch/man"
for shell in bash zsh fish; do
	"$scratch/blockyard" completion "$shell" >"$scratch/completions/blockyard.$shell"
done

rm -rf "${out:?}"
mkdir -p "$out"
for arch in amd64 arm64; do
	if toolchain "$arch"; then archive "$arch"; fi
done
scripts/wheels.sh "$out"
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "$out:"
cat "$out/SHA256SUMS"
