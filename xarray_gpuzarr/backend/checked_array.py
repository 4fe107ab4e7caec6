"""`CheckedArray`: text and other arrays that stay with xarray, whose frames are checked before they are decoded."""

from __future__ import annotations

from typing import Any

from xarray.backends.zarr import ZarrArrayWrapper

from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.read import checked_array, refused_frame


class CheckedArray(ZarrArrayWrapper):
    """xarray's lazy array of a zarr array; a read raises `CorruptChunkError` for a frame with a wrong header.

    It holds and pickles the zarr array as it was opened. What is read is another one, made for the read.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        array = self.get_array()  # type: ignore[no-untyped-call]  # xarray's
        try:
            return ZarrArrayWrapper(checked_array(array))[key]
        except FrameError as err:
            raise refused_frame(array, err) from err

    async def async_getitem(self, key: Any) -> Any:
        """Read a selection, as xarray's ``load_async`` does."""
        array = self.get_array()  # type: ignore[no-untyped-call]  # xarray's
        try:
            return await ZarrArrayWrapper(checked_array(array)).async_getitem(key)
        except FrameError as err:
            raise refused_frame(array, err) from err
