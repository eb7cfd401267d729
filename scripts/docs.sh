#!/usr/bin/env bash
# docs.sh: builds the documentation site in site/. A broken link, a missing anchor, a page outside the
# navigation and a file that a page would load from elsewhere fail it.
set -euo pipefail

cd "$(dirname "$0")/.."
python=$(scripts/docs-env.sh)
trees=$(mktemp -d)
trap 'rm -rf "$trees"' EXIT

rm -rf site
"$python" -m sphinx --builder html --conf-dir docs/site --doctree-dir "$trees" \
	--fail-on-warning --keep-going --jobs auto --quiet . site

# The site must work without a network.
if grep -rnoE --include='*.html' --include='*.css' \
	'(<(script|img|iframe|source)[^>]* src="|<link[^>]* rel="(stylesheet|preload|icon|preconnect)"[^>]* href="|url\(["'\'']?|@import *["'\''])(https?:)?//[^"'\'')> ]*' site; then
	echo 'blockyard: the pages above load files from elsewhere' >&2
	exit 1
fi
echo "site/index.html: $(find site -name '*.html' | wc -l) pages, $(du -sh site | cut -f1)"
