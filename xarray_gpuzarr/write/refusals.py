"""The errors of shards and chunks that a store does not take, or does not hand out to be written in part."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xarray_gpuzarr.errors import GpuZarrError, StoreReadError, StoreWriteError
from xarray_gpuzarr.fetch.source import ObjectChangedError, failed
from xarray_gpuzarr.stored.array_spec import ArraySpec


@contextmanager
def naming_object(spec: ArraySpec, key: str, store: str, action: str) -> Iterator[None]:
    """Replace what a store raises inside a ``with`` block by a `StoreWriteError`, whose cause it becomes.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    key : str
        Key of the shard or chunk that is written.
    store : str
        Name of the store, as errors show it.
    action : str
        What the block does, such as "to remove it".

    Notes
    -----
    Errors of this package pass, but for `StoreReadError`: what cannot be read cannot be written in part. So do
    cancellations and interrupts.
    """
    try:
        yield
    except ObjectChangedError:
        raise
    except StoreReadError as err:
        raise _not_written(spec, key, action, err.found).within(store) from err.__cause__ or err
    except GpuZarrError:
        raise
    except Exception as err:  # a store may raise anything; it is named in the message
        raise _not_written(spec, key, action, failed(key, action, err).found).within(store) from err


def _not_written(spec: ArraySpec, key: str, action: str, found: str) -> StoreWriteError:
    name = object_name(spec)
    return StoreWriteError(
        f"cannot write {name} '{key}' of array '{spec.path}'",
        tried=action,
        found=found,
        do="check that you may write there, that there is room, and that the store can be reached; then write again. "
        f"The {name} is as it was before; or complete, if the store wrote it and its answer was lost",
    )


def object_name(spec: ArraySpec) -> str:
    """Return what an object of an array is called."""
    return "shard" if spec.index else "chunk"


def file_error(code: int, path: str) -> OSError:
    """Return the system's error of a file that could not be written, by its ``errno``.

    For a folder that does not exist, it is the error of the attempt to make it.
    """
    if code == errno.ENOENT:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            return err
    return OSError(code, os.strerror(code), path)
