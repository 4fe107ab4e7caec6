"""Sphinx configuration; `make docs` builds with warnings as errors and runs every notebook."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

project = "xarray_gpuzarr"
author = "The xarray_gpuzarr developers"
copyright = "2026, The xarray_gpuzarr developers"
version = release = installed_version("xarray-gpuzarr")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
numpydoc_show_class_members = False

# Sphinx reads nothing outside its folder, and links to a link are not followed; a copy keeps the times of its files.
HERE = Path(__file__).parent
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
shutil.copytree(HERE.parent / "notebooks", HERE / "notebooks", ignore=shutil.ignore_patterns("*.toml", ".*"))

# Notebooks have no stored outputs; they run here, from top to bottom, each in a kernel of its own.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_merge_streams = True

pygments_style = "tango"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = "xarray_gpuzarr"
html_static_path = ["_static"]
html_css_files = ["custom.css"]


def refuse_slow_notebooks(_app: Any, env: Any) -> None:
    """Let the build fail if a notebook took more than two minutes."""
    for name, metadata in env.nb_metadata.items():
        seconds = metadata.get("exec_data", {}).get("runtime") or 0
        if seconds > 120:
            raise ExtensionError(f"{name} ran for {seconds:.0f} s; notebooks have two minutes")


def setup(app: Any) -> None:
    """Connect the check of this project's notebooks."""
    app.connect("env-updated", refuse_slow_notebooks)
