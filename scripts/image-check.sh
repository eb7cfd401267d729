#!/usr/bin/env bash
# image-check.sh: builds the image of Dockerfile, and runs agent, engine and router from the image as its user.
#
# A Docker engine builds it where one runs. Elsewhere buildah does, as root and without a daemon; Debian's packages
# are installed on first use where that is allowed. Where no registry can be reached, the images that Dockerfile
# begins with are made from Debian's packages and the Go toolchain of this machine, and a line says so.
set -euo pipefail

cd "$(dirname "$0")/.."
image=blockyard:deploy-check

if docker info >/dev/null 2>&1; then
	docker build --quiet --tag "$image" .
	docker run --rm --interactive --entrypoint bash "$image" -s <scripts/image-run.sh
	echo 'ok    the image: built by Docker, and run'
	exit
fi
if [ "$(id -u)" != 0 ]; then
	echo 'skip  the image: no Docker engine runs here, and buildah needs root'
	exit
fi
for program in buildah ip; do # buildah, and iproute2
	if ! command -v $program >/dev/null && ! scripts/deps.sh buildah iproute2 mmdebstrap; then
		echo "skip  the image: no Docker engine runs here, and there is no $program"
		exit
	fi
done

storage=$(mktemp -d)
# A container left in the storage has mounts in it.
trap 'b rm --all >/dev/null 2>&1 || true; rm -rf "$storage"' EXIT
b() { buildah --storage-driver vfs --root "$storage/root" --runroot "$storage/run" "$@"; }

# base NAME TAR [COMMAND OF buildah config...] commits an image that has the files of TAR.
base() {
	local container name=$1 tar=$2
	shift 2
	container=$(b from scratch)
	b add --quiet "$container" "$tar" / >/dev/null
	if [ $# -gt 0 ]; then
		b add --quiet "$container" "$(go env GOROOT)" /usr/local/go >/dev/null
		b config "$@" "$container"
	fi
	b commit --quiet --rm "$container" "docker.io/library/$name" >/dev/null
}

mapfile -t names < <(sed -n 's/^FROM \([^ ]*\).*/\1/p' Dockerfile)
from='images of a registry'
for name in "${names[@]}"; do
	b pull --quiet "docker.io/library/$name" >/dev/null 2>"$storage/pull" && continue
	if ! command -v mmdebstrap >/dev/null && ! scripts/deps.sh mmdebstrap; then
		echo "skip  the image: $name cannot be pulled ($(tail -n 1 "$storage/pull")), and there is no mmdebstrap to make it"
		exit
	fi
	from="bases made from Debian's packages, because no registry can be reached"
	case $name in
	golang:*-bookworm)
		mmdebstrap --quiet --variant=minbase --include=ca-certificates,gcc,libc6-dev bookworm "$storage/go.tar"
		base "$name" "$storage/go.tar" --env PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			--env GOPATH=/go --env GOTOOLCHAIN=local --env "GOPROXY=$(go env GOPROXY)"
		;;
	debian:bookworm*)
		mmdebstrap --quiet --variant=minbase bookworm "$storage/debian.tar"
		base "$name" "$storage/debian.tar"
		;;
	*)
		echo "blockyard: Dockerfile begins with $name, which image-check.sh cannot make" >&2
		exit 1
		;;
	esac
done

# The caches of this machine's toolchain spare the download and most of the compiling.
b build --quiet --isolation chroot --pull-never --layers=false --tag "$image" \
	--volume "$(go env GOMODCACHE):/go/pkg/mod" --volume "$(go env GOCACHE):/root/.cache/go-build" . >/dev/null
container=$(b from --pull-never "$image")
# A network and a /dev/shm of 64 MB of its own, as a container has.
# shellcheck disable=SC2016 # the inner bash has the arguments
unshare --net --mount bash -c 'ip link set lo up && mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"' - \
	buildah --storage-driver vfs --root "$storage/root" --runroot "$storage/run" run --isolation chroot "$container" -- bash -s <scripts/image-run.sh
echo "ok    the image: built by buildah from $from, and run"
