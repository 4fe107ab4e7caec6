"""`CheckedArray`: an array that xarray reads through zarr-python, with frames that are checked before they are decoded.

Text and other arrays that this package does not decode are of this class if their codecs have frames to check.
"""

from __future__ import annotations

from typing import Any

from xarray.backends.zarr import ZarrArrayWrapper

from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.read import checked_array, refused_frame


class CheckedArray(ZarrArrayWrapper):
    """A lazy array of xarray whose reads raise `CorruptChunkError` for a frame with a wrong header.

    The zarr array that it holds, and that is pickled, is the one that was opened. Each read makes another zarr array,
    with codecs that check frames.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        array = self.get_array()  # type: ignore[no-untyped-call]  # xarray has not annotated it
        try:
            return ZarrArrayWrapper(checked_array(array))[key]
        except FrameError as err:
            raise refused_frame(array, err) from err

    async def async_getitem(self, key: Any) -> Any:
        """Return a selection, for xarray's ``load_async``."""
        array = self.get_array()  # type: ignore[no-untyped-call]  # xarray has not annotated it
        try:
            return await ZarrArrayWrapper(checked_array(array)).async_getitem(key)
        except FrameError as err:
            raise refused_frame(array, err) from err
