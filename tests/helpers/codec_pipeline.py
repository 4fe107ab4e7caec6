"""Reads of plain zarr arrays by this package's pipeline beside zarr-python's own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import zarr

from helpers.compare import assert_same_bits
from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.codec_pipeline.pipeline import CodecPipeline


@contextmanager
def reads_planned() -> Iterator[None]:
    """Fail if zarr-python's own pipeline has to read for this package's."""
    read = CodecPipeline.read
    left_over = []

    async def noting(pipeline: Any, batch_info: Any, out: Any, drop_axes: Any = ()) -> Any:
        batch = list(batch_info)
        assert pipeline is not None
        own, pipeline.own = pipeline.own, Refusing(left_over)
        try:
            return await read(pipeline, batch, out, drop_axes)
        finally:
            pipeline.own = own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CodecPipeline, "read", noting)
        patch.setattr("xarray_gpuzarr.codec_pipeline.reading.FEW_CHUNKS", 0)  # which zarr-python copies sooner
        yield
    assert left_over == []


def settings_taken_back() -> AbstractContextManager[Any]:
    """Take back what is set for good meanwhile: which codec pipeline and buffer zarr-python uses."""
    config = zarr.config
    return config.set({"codec_pipeline": dict(config.get("codec_pipeline")), "ndbuffer": config.get("ndbuffer")})


class Refusing:
    """A pipeline that reads nothing, and notes that it was asked to."""

    def __init__(self, left_over: list[Any]) -> None:
        self._left_over = left_over

    async def read(self, batch: Any, out: Any, drop_axes: Any = ()) -> Any:
        if batch:
            self._left_over.append(batch)
        raise AssertionError("left to zarr-python")


def opened_by_both(store: Any, **keywords: Any) -> tuple[zarr.Array[Any], zarr.Array[Any]]:
    """Open an array twice: with zarr-python's own pipeline, and with this package's."""
    own = zarr.open_array(store, mode="r", **keywords)
    with zarr_pipeline():
        return own, zarr.open_array(store, mode="r", **keywords)


def assert_same_reads(arrays: tuple[Any, Any], read: Callable[[Any], Any]) -> None:
    """Read both arrays; the results are the same bits, of the same type, or the same error."""
    try:
        expected = read(arrays[0])
    except IndexError as error:
        with pytest.raises(type(error)):
            read(arrays[1])
        return
    with zarr_pipeline():
        found = read(arrays[1])
    assert type(found) is type(expected)
    assert_same_bits(np.asarray(found), np.asarray(expected))
