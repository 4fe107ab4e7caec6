"""The errors of shards and chunks that could not be written, in whole or in part."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xarray_gpuzarr.errors import GpuZarrError, HostMemoryError, StoreReadError, StoreWriteError
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError, failed_error
from xarray_gpuzarr.stored.array_spec import ArraySpec


@contextmanager
def naming_object(spec: ArraySpec, key: str, store: str, action: str) -> Iterator[None]:
    """Turn errors of a store inside a ``with`` block into a `StoreWriteError` that names the object.

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

    Raises
    ------
    StoreWriteError
        If the block raises an `Exception` that is no error of this package, or a `StoreReadError`, since a part of an
        object can be written only if the object can be read. The error of the store becomes the cause.

    Notes
    -----
    All other errors of this package, cancellations and interrupts pass through.
    """
    try:
        yield
    except ObjectChangedError:  # a `StoreReadError`, after which the write is repeated
        raise
    except StoreReadError as err:
        raise _store_error(spec, key, action, err.found).within(store) from err.__cause__ or err
    except GpuZarrError:
        raise
    except Exception as err:  # a store may raise anything
        raise _store_error(spec, key, action, failed_error(key, action, err).found).within(store) from err


def _store_error(spec: ArraySpec, key: str, action: str, found: str) -> StoreWriteError:
    """Return the error for an object that a store does not take, or does not let this package read.

    `action` and `found` are what was tried and what came of it.
    """
    name = object_name(spec)
    return StoreWriteError(
        f"cannot write {name} '{key}' of array '{spec.path}'",
        tried=action,
        found=found,
        do="check that you may write there, that there is space left, and that the store can be reached; then write "
        f"again. The {name} is as it was before; or complete, if the store wrote it and its answer was lost",
    )


def unwritten_error(spec: ArraySpec, key: str, tried: str, cause: OSError | None) -> StoreWriteError:
    """Return the error for an object that the compiled loops did not write.

    `tried` says how far the write has come. `cause` is the system's error; None if the codec did not encode a chunk.
    """
    name = object_name(spec)
    return StoreWriteError(
        f"cannot write {name} '{key}' of array '{spec.path}'",
        tried=tried,
        found="the codec cannot encode the chunk" if cause is None else str(cause),
        do=f"solve the problem and write again; the {name} is as it was before, and no {name} is written in part",
    )


def replaced_error(spec: ArraySpec, key: str, n_objects: int) -> StoreWriteError:
    """Return the error for objects, the first of which has the key `key`, that another process keeps replacing."""
    return StoreWriteError(
        f"cannot write parts of array '{spec.path}'",
        tried=f"'{key}' and {n_objects - 1} more, several times",
        found="another process replaces them at the same time",
        do="let one process at a time write to a shard, and give each task whole shards",
    )


def encoding_memory_error(spec: ArraySpec, chunks_per_object: int, reason: str) -> HostMemoryError:
    """Return the error for objects for which there is not enough host memory; `reason` is what the system says."""
    return HostMemoryError(
        f"not enough host memory to write array '{spec.path}'",
        tried=f"to encode chunks of {spec.chunk_nbytes} bytes, {chunks_per_object} in an object",
        found=reason,
        do="write in fewer threads at once, or choose smaller chunks and shards",
    )


def object_name(spec: ArraySpec) -> str:
    """Return what an object of an array is called: "shard", or "chunk" if the array has no shards."""
    return "shard" if spec.index else "chunk"


def file_error(code: int, path: str) -> OSError:
    """Return the error of a file that could not be written, given its ``errno``.

    If the folder does not exist, the loops have tried in vain to make it. This function tries again, and returns the
    error of that attempt.
    """
    if code == errno.ENOENT:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            return err
    return OSError(code, os.strerror(code), path)
