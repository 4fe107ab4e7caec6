"""`ShardVariable`: a variable that becomes one dask task per shard when it is chunked.

The user need not name a chunk manager, as in ``xr.open_dataset(..., chunks={})``. `chunking` is imported only when a
variable is chunked, because importing dask takes four times as long as opening a store.
"""

from __future__ import annotations

from typing import Any, Self

from xarray import Variable
from xarray.namedarray.parallelcompat import ChunkManagerEntrypoint

from xarray_gpuzarr.backend.lazy_array import data_of, find_lazy_array, find_lazy_selection


class ShardVariable(Variable):
    """A lazily read variable that becomes one dask task per shard when it is chunked."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as an `xarray.Variable` once it is read or chunked, so that it can be loaded without this package."""
        reduced: Any = super().__reduce_ex__(protocol)
        if find_lazy_array(data_of(self)) is not None:
            return reduced
        state = reduced[2:]
        # pickle refuses `copyreg.__newobj__`, the function in `reduced`, for any class but the object's own.
        return object.__new__, (Variable,), *state

    def to_base_variable(self) -> Self:
        """Return a copy, which is a `ShardVariable` as well.

        xarray replaces every coordinate by such a copy. Its own method makes a plain `xarray.Variable`.
        """
        return type(self)(self.dims, data_of(self), self.attrs, self.encoding, fastpath=True)

    to_variable = to_base_variable

    def chunk(  # type: ignore[override]  # the same signature as in `xarray.Variable`
        self,
        chunks: Any = {},  # noqa: B006
        name: str | None = None,
        lock: bool | None = None,  # noqa: FBT001
        inline_array: bool | None = None,  # noqa: FBT001
        chunked_array_type: str | ChunkManagerEntrypoint[Any] | None = None,
        from_array_kwargs: Any = None,
        **chunks_kwargs: Any,
    ) -> Self:
        """Chunk as `xarray.Variable.chunk` does. The blocks of a lazy array are arrays of the decoder's library."""
        if find_lazy_selection(data_of(self)) is not None:
            from xarray_gpuzarr.backend.chunking import shard_manager_for  # noqa: PLC0415  # imports dask

            chunked_array_type = shard_manager_for(chunked_array_type)
        chunked: Self = super().chunk(
            chunks, name, lock, inline_array, chunked_array_type, from_array_kwargs, **chunks_kwargs
        )
        return chunked
