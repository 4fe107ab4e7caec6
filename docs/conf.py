"""Sphinx configuration; `make docs` builds with warnings as errors."""

from importlib.metadata import version as installed_version

project = "xarray_gpuzarr"
author = "The xarray_gpuzarr developers"
copyright = "2026, The xarray_gpuzarr developers"
version = release = installed_version("xarray-gpuzarr")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
numpydoc_show_class_members = False
html_theme = "furo"
html_title = "xarray_gpuzarr"
