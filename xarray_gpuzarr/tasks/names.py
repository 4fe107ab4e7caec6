"""Names of dask tasks: what progress bars and dashboards show, and what makes two opens of one store the same tasks.

dask shows a name up to the first word that it takes for a token, and merges tasks of the same name. Called by
`backend.chunking`.
"""

from __future__ import annotations

import re
from hashlib import md5
from typing import Any

from dask.base import normalize_token
from dask.utils import key_split

from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.tasks.file_marks import array_path, file_marks

_GENERIC_PREFIXES = ("open_dataset-", "xarray-")
"""What xarray writes before names that the user has not chosen."""
_WITH_TOKEN = re.compile(r"(.+)-[0-9a-f]{32}", re.DOTALL)
"""A name that xarray has made: prefix, variable and token."""


def task_name(stored: StoredArray, chosen: str | None, *content: Any) -> str:
    """Return the name of the tasks that read an array.

    Parameters
    ----------
    stored : StoredArray
    given : str or None
        The name that xarray has made, or one that the user has chosen, which is kept.
    *content
        All else that the values of the tasks depend on.

    Returns
    -------
    str
        ``gpuzarr-<variable>-<token>``, with an underscore where dask would not show the variable otherwise; a prefix
        of the user's stays. The token is another one where xarray's is, where `content` is, and where the files of a
        local store were seen to change.
    """
    made = _WITH_TOKEN.fullmatch(chosen or "")
    if chosen is not None and made is None:
        return chosen
    shown = _shown(stored) if made is None or made[1].startswith(_GENERIC_PREFIXES) else made[1]
    as_text = repr((chosen, array_path(stored), file_marks(stored), normalize_token(content)))
    return f"{shown}-{md5(as_text.encode(), usedforsecurity=False).hexdigest()}"  # as dask does, in a third of its time


def _shown(stored: StoredArray) -> str:
    variable = visible(array_path(stored).rpartition("/")[2]) or "array"
    name = f"gpuzarr-{variable}"
    return name if key_split(f"{name}-0") == name else f"gpuzarr_{variable.replace('-', '_')}"
