"""The documentation as a site: `make docs` writes it to build/site.

The pages are the Markdown files as they are, so that they read the same in the repository."""

import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[2]

project = "gpu-panel"
author = "the gpu-panel developers"
version = release = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx_external_toc"]
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md"]
external_toc_path = "docs/site/contents.yml"
myst_heading_anchors = 4  # as in the repository: links to headings
nitpicky = True  # with -W a link to something that is not there fails the build

html_theme = "furo"
html_title = f"gpu-panel {release}"
html_copy_source = False
pygments_style, pygments_dark_style = "tango", "monokai"
