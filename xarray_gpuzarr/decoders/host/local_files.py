"""The local files that hold encoded chunks of a plan, for the compiled loops, which read what they decode."""

from __future__ import annotations

import sys

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
    paths = bytearray()
    starts: list[int] = []
    versions: list[int] = []
    try:
        for key in plan.keys:
            path, version = source.local_file(key)
            starts.append(len(paths))
            paths += path.encode(_ENCODING, _ERRORS) + b"\0"  # as `os.fsencode` does
            versions += version or _NO_VERSION
    except UnicodeEncodeError:
        return None
    if paths.count(b"\0") > len(starts):
        return None
    is_sharded, rule = plan.spec.index is not None, source.rule
    about, at = int64s(starts + versions)
    if is_sharded:
        room_nbytes = max(plan.most_nbytes, min(_ROOM_NBYTES, rule.max_nbytes))
    else:
        room_nbytes = -(-plan.spec.expected_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES
    versions_at, offset = (at + 8 * len(starts), plan.offset_at) if is_sharded else (0, 0)
    lengths = room_nbytes, rule.max_gap_nbytes, plan.spec.most_nbytes
    struct = FilesStruct(bytes(paths), at, versions_at, plan.at, offset, 0, *lengths)
    return Files(struct=struct, kept=(about, plan))
