#!/bin/bash
# test-changed.sh [REF]
#
# Tests the packages with a file that has changed since this branch left REF (main,
# else origin/main). Committed, uncommitted and new files count. The tests run with
# -short and without the race detector. The script does not test packages that
# import a changed package; "make test" does.
set -euo pipefail

cd "$(dirname "$0")/.."

fail() {
	echo "blockyard: $*" >&2
	exit 1
}

# main_ref prints the name of the main branch.
main_ref() {
	local ref
	for ref in main origin/main; do
		if git rev-parse --quiet --verify "$ref^{commit}" >/dev/null; then
			echo "$ref"
			return
		fi
	done
	return 1
}

# changed_files lists the files that differ from commit $1.
changed_files() {
	git -c core.quotePath=false diff --name-only --no-renames "$1"
	git -c core.quotePath=false ls-files --others --exclude-standard
}

# affected_dirs reads file names and prints the directory of each file's package.
# Files under testdata belong to the package above. A document belongs to the
# packages whose tests read docs/.
affected_dirs() {
	local file dir
	while read -r file; do
		case $file in
		# deploy/check is a module of its own, which is not in packages.
		docs/*) git grep -l '\.\./docs/' -- '*_test.go' | xargs -r -n 1 dirname | grep -xF "$packages" || true ;;
		esac
		dir=$(dirname "$file")
		while [ "$dir" != . ] && ! grep -qxF "$dir" <<<"$packages"; do
			dir=$(dirname "$dir")
		done
		[ "$dir" = . ] || echo "$dir"
	done
}

ref=${1:-$(main_ref)} || fail 'neither main nor origin/main exists: name the branch to compare with: make check REF=NAME'
base=$(git merge-base "$ref" HEAD) || fail "REF: \"$ref\" has no common commit with HEAD; name a branch or commit of this repository"

packages=$(go list -f '{{.Dir}}' ./... | sed "s|^$PWD/||")
files=$(changed_files "$base")
affected=$(affected_dirs <<<"$files" | sort -u)
if [ -n "$affected" ]; then
	# shellcheck disable=SC2046,SC2086 # lists of words
	go test -short -timeout 10m $(printf './%s\n' $affected)
else
	echo "no package differs from $ref"
fi
if grep -q '^connector/' <<<"$files"; then
	echo 'connector/ has changes too: run "make test-connector"'
fi
