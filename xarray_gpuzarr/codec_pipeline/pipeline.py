"""`CodecPipeline`: the codec pipeline through which zarr-python reads and writes with this package.

Reads go to `reading`, and writes to `writing`. Everything else goes to zarr-python's own pipeline, also the reads and
writes that these two cannot plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import zarr
from zarr.abc import codec
from zarr.abc.codec import Codec
from zarr.abc.store import ByteSetter, Store
from zarr.core import codec_pipeline as zarr_pipelines
from zarr.core.array import create_codec_pipeline
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.registry import register_pipeline

from xarray_gpuzarr.errors import CorruptChunkError
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata

if TYPE_CHECKING:
    from zarr.abc.codec import GetResult  # since zarr-python 3.2

    from xarray_gpuzarr.codec_pipeline.batches import Item
    from xarray_gpuzarr.codec_pipeline.reading import ArrayReader
    from xarray_gpuzarr.codec_pipeline.writing import ArrayWriter

_PRESENT: GetResult = {"status": "present"}
_FASTEST: type[codec.CodecPipeline] = getattr(zarr_pipelines, "FusedCodecPipeline", zarr_pipelines.BatchedCodecPipeline)
"""The fastest pipeline of zarr-python itself. Before 3.3, it has only one."""


def is_zarr_new_enough() -> bool:
    """Whether zarr-python is 3.2 or newer. Older versions pass other items for shards than `batches` knows."""
    return tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 2)


class CodecPipeline(codec.CodecPipeline):
    """Reads and writes zarr arrays with the engine of this package, and reads them into CuPy arrays on a GPU.

    zarr-python makes one for each array that is opened while its setting ``codec_pipeline.path`` is
    ``"xarray_gpuzarr.CodecPipeline"``. zarr-python's fastest pipeline reads and writes what this package cannot plan.
    For an array that is copied or unpickled while the setting names another pipeline, that one does so instead.

    Parameters
    ----------
    metadata : zarr.core.metadata.ArrayV2Metadata or ArrayV3Metadata
        Metadata of the array.
    store : zarr.abc.store.Store
        The store that holds the array.
    own : zarr.abc.codec.CodecPipeline
        zarr-python's own pipeline for the same array.
    """

    def __init__(self, metadata: ArrayV2Metadata | ArrayV3Metadata, store: Store, own: codec.CodecPipeline) -> None:
        self.metadata = metadata
        self.store = store
        self.own = own
        self._reader: ArrayReader | None = None
        self._writer: ArrayWriter | None = None

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: ArrayV2Metadata | ArrayV3Metadata, store: Store) -> Self:
        """Return the pipeline for one array.

        Raises
        ------
        NotImplementedError
            If zarr-python is older than 3.2. It then makes a pipeline of its own.
        """
        if not is_zarr_new_enough():
            raise NotImplementedError
        # `create_codec_pipeline` is given no store, so it calls `from_codecs` of the class that zarr-python's settings
        # name. If that is this class, the method below returns zarr-python's own pipeline.
        return cls(array_metadata, store, create_codec_pipeline(checked_metadata(array_metadata)))

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> codec.CodecPipeline:  # type: ignore[override]
        """Return zarr-python's own pipeline for codecs that have no store, such as those of inner chunks."""
        return _FASTEST.from_codecs(codecs)

    def use_store(self, store: Store) -> None:
        """Read from and write to another store, which holds the same objects, from now on."""
        self.store = store
        self._reader = self._writer = None

    def __reduce__(self) -> tuple[Any, ...]:
        # `own` is made anew from the metadata: pickled, the codecs inside its sharding codec would lose the checks of
        # frames that `checked_metadata` has added.
        return type(self).from_array_metadata_and_store, (self.metadata, self.store)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodecPipeline) and (self.store, self.own) == (other.store, other.own)

    def __hash__(self) -> int:
        return hash((type(self), self.own))

    def __iter__(self) -> Iterator[Codec]:
        return iter(self.own)  # type: ignore[call-overload, no-any-return]  # zarr-python's pipelines can be iterated

    async def read(
        self, batch_info: Iterable[Item], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> tuple[GetResult, ...]:
        """Read chunks into `out`, all with one plan; see `zarr.abc.codec.CodecPipeline.read`.

        Notes
        -----
        Every chunk is reported as present. With ``array.read_missing_chunks`` off, a missing one raises an error.
        """
        batch = list(batch_info)
        if self._reader is None:
            self._reader = await asyncio.to_thread(_make_reader, self.metadata, self.store)
        if batch and await self._reader.read(batch, out, drop_axes, self.own):
            return (_PRESENT,) * len(batch)
        with self._explaining_damage(batch):
            return await self.own.read(batch, out, drop_axes)

    async def write(
        self,
        batch_info: Iterable[tuple[ByteSetter, ArraySpec, Any, Any, bool]],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Encode chunks and write them; see `zarr.abc.codec.CodecPipeline.write`."""
        batch = list(batch_info)
        if self._writer is None:
            self._writer = await asyncio.to_thread(_make_writer, self.metadata, self.store)
        if batch:
            with self._explaining_damage(batch):
                await self._writer.write(batch, value, drop_axes, self.own)

    @contextmanager
    def _explaining_damage(self, batch: Sequence[tuple[Any, ...]]) -> Iterator[None]:
        """Raise a `CorruptChunkError` if a check refuses a frame that zarr-python's own pipeline would decode."""
        try:
            yield
        except FrameError as err:
            keys = [str(getattr(item[0], "path", item[0])) for item in batch]
            others = f" or one of {len(keys) - 1} others" if len(keys) > 1 else ""
            raise CorruptChunkError(
                "cannot decode a stored chunk",
                tried=f"object {keys[0]!r}{others}, by zarr-python's own codec pipeline",
                found=str(err),
                do="the stored chunk is damaged: rewrite it, or leave it out of the selection",
            ) from err

    # ---- zarr-python's own pipeline does the rest

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return a pipeline whose codecs are adapted to the spec of the chunks."""
        return type(self)(self.metadata, self.store, self.own.evolve_from_array_spec(array_spec))

    @property
    def supports_partial_decode(self) -> bool:
        """Whether zarr-python's own pipeline decodes parts of a chunk."""
        return self.own.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether zarr-python's own pipeline encodes parts of a chunk."""
        return self.own.supports_partial_encode

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Check that the codecs fit the array."""
        self.own.validate(shape=shape, dtype=dtype, chunk_grid=chunk_grid)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        """Return the encoded length of `byte_length` bytes. Raises `NotImplementedError` if a codec cannot tell it."""
        return self.own.compute_encoded_size(byte_length, array_spec)

    async def decode(
        self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        """Decode chunks that are in memory."""
        return await self.own.decode(chunk_bytes_and_specs)

    async def encode(
        self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]
    ) -> Iterable[Buffer | None]:
        """Encode chunks."""
        return await self.own.encode(chunk_arrays_and_specs)


def _make_reader(metadata: ArrayV2Metadata | ArrayV3Metadata, store: Store) -> ArrayReader:
    from xarray_gpuzarr.codec_pipeline.reading import ArrayReader  # noqa: PLC0415  # importing it takes longer than opening an array

    return ArrayReader(metadata, store)


def _make_writer(metadata: ArrayV2Metadata | ArrayV3Metadata, store: Store) -> ArrayWriter:
    from xarray_gpuzarr.codec_pipeline.writing import ArrayWriter  # noqa: PLC0415  # as above

    return ArrayWriter(metadata, store)


CodecPipeline.__module__ = "xarray_gpuzarr"  # under which zarr-python's settings name it
register_pipeline(CodecPipeline)
