"""Requests that a read begins with, for whole objects and indexes of shards. They may be made ahead of it."""

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
    """Say whether objects of an array may be asked for ahead.

    They are not if they are at hand anyway, if a missing one is an error, for which a read has to ask itself, or if a
    read requests chunks that are objects in pieces. `by_host` says which decoder reads.
    """
    spec, source = stored.spec, stored.source
    if not isinstance(spec, ArraySpec) or source is None or isinstance(source, StrictSource) or not source.is_remote:
        return False
    is_raw = not spec.codecs.stages and spec.codecs.other is None
    may_be_cut = spec.index is None and source.cuts_objects and (is_raw or not by_host)
    return not may_be_cut or spec.chunk_nbytes <= source.rule.max_raw_nbytes


def first_wanted(stored: StoredArray, selection: Any) -> list[ObjectRequest]:
    """Return what a read of an outer selection asks for first; nothing unless it is evenly spaced along each axis."""
    spec, source = stored.spec, stored.source
    assert isinstance(spec, ArraySpec)
    assert source is not None
    target = box_target(outer_selection(selection, stored.shape), spec.grid)
    if target.spans is None:
        return []
    blocks = plan_blocks(spec, target)
    if spec.index is not None:
        return [ObjectRequest(str(block.key), comes_whole(spec, block.n_rows, source.rule)) for block in blocks]
    spans = target.spans
    coords = [coord for block in blocks for coord in product(*map(chunks_of_span, spans, block.ranges))]
    return [ObjectRequest(spec.keys.key(coord), is_whole=True) for coord in coords]
