#!/usr/bin/env bash
# chromium-env.sh: prints the path of Chromium. Installs Debian's package on first use
# where that is allowed. BLOCKYARD_TEST_CHROMIUM names another program.
set -euo pipefail

cd "$(dirname "$0")/.."

program() {
	local name
	for name in "${BLOCKYARD_TEST_CHROMIUM:-}" chromium chromium-browser google-chrome; do
		if [ -n "$name" ] && command -v "$name"; then return 0; fi
	done
	return 1
}

program || {
	scripts/deps.sh chromium >&2 || {
		echo "blockyard: no Chromium: install the package chromium, or name a program with BLOCKYARD_TEST_CHROMIUM" >&2
		exit 1
	}
	program
}
