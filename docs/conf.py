"""Sphinx configuration; `make docs` builds with warnings as errors and shows notebooks as they are committed."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

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

nb_execution_mode = "off"  # `make fresh-notebooks` runs them
nb_merge_streams = True

pygments_style = "tango"
pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = "xarray_gpuzarr"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
