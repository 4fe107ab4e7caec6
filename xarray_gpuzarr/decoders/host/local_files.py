"""The local files that hold encoded chunks of a plan, for the compiled loops, which read what they decode."""

from __future__ import annotations

import sys
from itertools import accumulate

from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.native import int64s
from xarray_gpuzarr.native.library import FilesStruct
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.records import record

_BLOCK_NBYTES = 512
"""What is in memory of a file is whole blocks of this size, but for its end."""
_ROOM_NBYTES = 256 * 1024
"""Of neighbours that are read at once; they stay in a core's cache."""


_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_NO_VERSION = (0,) * 5
"""Of a shard that is not there, of which nothing is read."""


@record
class Files:
    """Local files that hold encoded chunks."""

    struct: FilesStruct
    """But for the memory that threads read into: each, the longest chunk, or neighbours that are read at once."""
    kept: object
    """What `struct` points to."""


def local_files(plan: ReadPlan, source: ByteSource) -> Files | None:
    """Return the files that hold the chunks of a plan, one at least; None if there can be no such files.

    Parameters
    ----------
    plan : ReadPlan
    source : ByteSource
        Local.
    """
    found = [source.local_file(key) for key in plan.keys]
    names = [file.path.encode(_ENCODING, _ERRORS) for file in found]  # as `os.fsencode` does
    paths = b"\0".join([*names, b""])
    if paths.count(b"\0") > len(names):
        return None
    is_sharded, rule = plan.spec.index is not None, source.rule
    starts = accumulate([len(name) + 1 for name in names[:-1]], initial=0)
    about, at = int64s([*starts, *[number for file in found for number in file.version or _NO_VERSION]])
    if is_sharded:
        room_nbytes = max(plan.most_nbytes, min(_ROOM_NBYTES, rule.max_nbytes))
    else:
        room_nbytes = -(-plan.spec.most_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES
    struct = FilesStruct(
        paths=paths,
        path_at=at,
        version=at + 8 * len(names) if is_sharded else 0,
        file=plan.at,
        offset=plan.offset_at if is_sharded else 0,
        room_nbytes=room_nbytes,
        max_gap_nbytes=rule.max_gap_nbytes,
    )
    return Files(struct=struct, kept=(about, plan))
