"""Sphinx configuration; `make docs` builds with warnings as errors and shows notebooks as they are committed."""

import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

from docutils import nodes
from numpydoc.xref import DEFAULT_LINKS
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

import xarray_gpuzarr

logger = getLogger(__name__)

project = "xarray_gpuzarr"
author = "The xarray_gpuzarr developers"
copyright = "2026, The xarray_gpuzarr developers"
version = release = installed_version("xarray-gpuzarr")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
numpydoc_show_class_members = False

# Links to other projects' documentation need no network to be built: `inventories` has the names that are used.
HERE = Path(__file__).parent
DOCUMENTATION = {
    "cupy": "https://docs.cupy.dev/en/stable/",
    "dask": "https://docs.dask.org/en/stable/",
    "distributed": "https://distributed.dask.org/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "rich": "https://rich.readthedocs.io/en/stable/",
    "xarray": "https://docs.xarray.dev/en/stable/",
    "zarr": "https://zarr.readthedocs.io/en/stable/",
}
INVENTORIES = {name: HERE / "inventories" / f"{name}.inv" for name in DOCUMENTATION}
intersphinx_mapping = {name: (address, str(INVENTORIES[name])) for name, address in DOCUMENTATION.items()}
linked = [line.split()[0] for path in INVENTORIES.values() for line in path.read_text().splitlines()[3:]]

# Names of types become links where there is something to link to; all other words stay words, numpydoc's own as well.
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_xref_aliases = (
    {word: word for word in DEFAULT_LINKS}
    | {name: f":obj:`{name}`" for name in linked}
    | {name: f":obj:`~xarray_gpuzarr.{name}`" for name in xarray_gpuzarr.__all__}
)
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [("py:obj", rf"(?!({'|'.join(DOCUMENTATION)})\.).*")]  # parameters, and what is not public

# Sphinx reads nothing outside its folder, and links to a link are not followed; a copy keeps the times of its files.
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


def check_fences(_app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Warn of a fence that reads as text, and of a heading inside a directive, which is no section to link to."""
    for text in doctree.findall(nodes.Text):
        if ":::" in text and not isinstance(text.parent, nodes.literal | nodes.literal_block):
            logger.warning("a fence that closes nothing: %s", text[-60:], location=text.parent)
    for rubric in doctree.findall(nodes.rubric):
        if "level" in rubric:
            logger.warning("a heading inside a directive: %s", rubric.astext(), location=rubric)


def setup(app: Sphinx) -> None:
    """Check what the warnings of Sphinx leave out."""
    app.connect("doctree-resolved", check_fences)
