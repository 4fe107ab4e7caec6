"""What is added to the errors of a write: the group, what was tried, and what to do.

The group becomes part of the message. The rest are notes, because the errors may be those of other libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xarray_gpuzarr.backend.accessor.whole_shards import DatasetInShards
from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.errors import OptionError, masked


@contextmanager
def naming_group(path: str) -> Iterator[None]:
    """Add the path of a group, unless it is the outermost one, to the message of an error about one of its variables.

    Errors that are raised later, when values are written, name the group themselves (`FitCheck.group`).
    """
    try:
        yield
    except OptionError as err:
        if path != ".":
            err.within(f"group {path!r}")
        raise


@contextmanager
def explaining_longer_arrays(group: DatasetInShards) -> Iterator[None]:
    """Add to an error of an append that the arrays may be longer already, and how to write the data again."""
    try:
        yield
    except Exception as err:
        if group.append_region is not None:
            err.add_note(
                "found: an append that has ended in an error, so the arrays may have their new length already\n"
                f"do:    if they have, write the corrected data with region={group.append_region}, not with append_dim"
            )
        raise


@contextmanager
def explaining_refusals(store: Any) -> Iterator[None]:
    """Add to an error of a store what was tried and what to do. Errors about arguments are left as they are."""
    try:
        yield
    except Exception as err:
        advice = None
        if isinstance(err, PermissionError):
            advice = "check that you may write there"
        elif isinstance(err, FileExistsError):
            advice = "give mode='w' to replace what is stored, or append_dim= or region= to add to it"
        elif takes_long(store) and not isinstance(err, ValueError | TypeError | KeyError):
            advice = "check the address, the server, and what you may write there"
        if advice is not None:
            err.add_note(f"tried: to write groups and arrays to {masked(str(store))}\ndo:    {advice}")
        raise
