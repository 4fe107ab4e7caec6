"""The first requests of a read, for whole objects and shard indexes, which can be made before the read begins."""

from __future__ import annotations

from itertools import product
from typing import Any

from xarray_gpuzarr.fetch.ahead import ObjectRequest
from xarray_gpuzarr.fetch.strict import StrictSource
from xarray_gpuzarr.fetch.whole_shard import comes_whole
from xarray_gpuzarr.plan.axis_pieces import chunks_of_span
from xarray_gpuzarr.plan.read_plan import plan_blocks
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read.stored_array import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec


def may_ask_ahead(stored: StoredArray, *, by_host: bool) -> bool:
    """Whether objects of an array may be requested before a read begins. `by_host` says whether the host decodes.

    They may not if zarr-python reads the array, if the store is not remote, if a missing object is an error (which only
    the read itself detects), or if the read requests unsharded chunks in pieces.
    """
    spec, source = stored.spec, stored.source
    if not isinstance(spec, ArraySpec) or source is None or isinstance(source, StrictSource) or not source.is_remote:
        return False
    # The host requests only raw chunks in pieces, a GPU's decoder also encoded ones.
    is_raw = not spec.codecs.stages and spec.codecs.other is None
    may_be_cut = spec.index is None and source.cuts_objects and (is_raw or not by_host)
    is_cut = may_be_cut and spec.chunk_nbytes > source.rule.max_raw_nbytes
    return not is_cut


def first_requests(stored: StoredArray, selection: Any) -> list[ObjectRequest]:
    """Return the first requests of a read, of an array that `may_ask_ahead`.

    The list is empty unless the outer selection is evenly spaced along each axis.
    """
    spec, source = stored.spec, stored.source
    assert isinstance(spec, ArraySpec)
    assert source is not None
    target = box_target(outer_selection(selection, stored.shape), spec.grid)
    if target.spans is None:
        return []
    blocks = plan_blocks(spec, target)
    if spec.index is not None:
        return [
            ObjectRequest(str(block.key), is_whole=comes_whole(spec, block.n_rows, source.rule)) for block in blocks
        ]
    requests = []
    for block in blocks:
        chunks_by_axis = map(chunks_of_span, target.spans, block.ranges)  # chunk numbers along each axis
        coordinates = product(*chunks_by_axis)
        requests += [ObjectRequest(spec.keys.key(coordinate), is_whole=True) for coordinate in coordinates]
    return requests
