"""The documentation site. scripts/docs.sh builds it; docs/decisions has why it is made this way.

The pages are the Markdown files where they lie, so that their links work in the repository and in
the site. NAVIGATION lists them; a page that it lacks fails the build.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

# What a reader wants to do comes first, how it is made last. A page is named by its path without ".md".
NAVIGATION = {
    "Start": ["docs/quickstart", "docs/status"],
    "Run it next to vLLM": ["docs/run-next-to-vllm", "connector/README"],
    "Route": ["docs/route", "docs/front-door", "docs/envoy"],
    "Move from KVBM": ["docs/migrate-from-kvbm", "docs/kvbm-environment", "connector/kvbm/README"],
    "Move from Dynamo": ["docs/migrate-from-dynamo", "docs/dynamo", "docs/seeds"],
    "Size it": ["docs/size", "docs/fleet", "docs/simulate"],
    "Watch it": ["docs/watch", "docs/runbooks"],
    "Operate it": ["docs/deploy", "docs/config", "docs/operations", "docs/tenants", "docs/disk-encryption", "docs/upgrade", "docs/release"],
    "Fix it": ["docs/doctor", "docs/fix", "docs/failures"],
    "Reference": [
        "docs/agent-config",
        "docs/router-flags",
        "docs/router-config",
        "docs/router-api",
        "docs/router-queue",
        "docs/router-estimate",
        "docs/replica-sync",
        "docs/remote-indexer",
        "docs/benchmarks",
        "docs/reliability",
        "CHANGELOG",
    ],
    "Decisions": ["docs/decisions/README"],
    "Formats": ["docs/formats", "docs/protocol", "docs/events", "docs/events-http"],
    "Change it": [
        "CONTRIBUTING",
        "ARCHITECTURE",
        "docs/packages",
        "docs/block-manager",
        "docs/router-index",
        "docs/inside-the-engine",
        "docs/native",
        "connector/e2e/README",
        "SECURITY",
    ],
}

project = "Blockyard"
html_title = "Blockyard"
copyright = "the Blockyard authors, Apache License 2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "README"
include_patterns = ["*.md", "docs/**", "connector/README.md", "connector/*/README.md"]
exclude_patterns = [".*", "bin", "dist", "site", "node_modules"]

# Anchors are those that hosting services give to headings of every level.
myst_heading_anchors = 6
nitpicky = True
# Examples leave parts out ("…"), which is no JSON.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "github-dark"


def _toctrees() -> str:
    """The directives that make the navigation."""
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in NAVIGATION.items()
    )


def _add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds to pages what would be noise where the files are read as they are."""
    if page == root_doc:
        source[0] += _toctrees()
    elif page == "docs/decisions/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def _copy_index(app: Sphinx, failure: Exception | None) -> None:
    """Serves README.md at the root of the site, too."""
    if failure is None and app.builder.format == "html":
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Sphinx calls it before the build."""
    for language in ("frame", "message"):  # bytes in hexadecimal
        app.add_lexer(language, TextLexer)
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _copy_index)
