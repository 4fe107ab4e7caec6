"""The registry of readers that benchmarks compare: how each opens an array and reads a box of it.

Nothing is measured here.
Peers are imported by the reader that needs them, so a process holds only its own libraries.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr
import zarr
from zarr.core import codec_pipeline

from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.read import read_array

Box = tuple[slice, ...]
"""One slice of elements per axis, step 1."""
ReadBox = Callable[[Box], Any]
"""Reads a box; every call starts from the stored bytes."""
Operation = Literal["read", "load"]
"""Stored values of an array; the variable that xarray makes of it, CF-decoded."""
Chunking = Literal["no dask", "chunks={}", "chunks=shards"]

PIPELINES: Mapping[str, str] = {
    "default": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "Fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
"""Codec pipelines of zarr-python; which one an array uses is fixed when it is opened."""
_GPU_BUFFERS = {"buffer": "zarr.buffer.gpu.Buffer", "ndbuffer": "zarr.buffer.gpu.NDBuffer"}
"""What `zarr.config.enable_gpu` sets."""


class AbsentError(Exception):
    """A reader cannot take part here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where an array is stored."""

    store: str = field(repr=False)
    """Path or URL that zarr-python opens; may hold secrets."""
    group: str = ""
    """Path of the array's group in the store, without a slash at either end."""
    variable: str
    """Name of the array in its group."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For the fsspec client of a remote store; may hold secrets."""

    @property
    def array_path(self) -> str:
        """Path of the array in the store."""
        return f"{self.group}/{self.variable}".lstrip("/")

    @property
    def given(self) -> dict[str, Any]:
        """The keyword of xarray and zarr-python that hands on the storage options; none if there are none."""
        return {"storage_options": dict(self.storage_options)} if self.storage_options else {}

    def open_array(self) -> zarr.Array[Any]:
        """Open the array with zarr-python."""
        return zarr.open_array(self.store, path=self.array_path, mode="r", **self.given)

    def local_folder(self) -> Path:
        """Return the folder of the array, for readers that open files themselves.

        Raises
        ------
        AbsentError
            The store is not a local folder.
        """
        folder = Path(self.store) / self.array_path
        if not folder.is_dir():
            raise AbsentError("compared on local folders only")
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReader:
    """One way to read an array."""

    name: str
    """What tables call it."""
    operation: Operation
    open: Callable[[Location], ReadBox]
    """May raise `AbsentError`, and whatever the library raises."""
    ours: bool = False
    device: Device = "host"
    """Where results live."""
    needs: tuple[str, str] | None = None
    """Module that has to be installed, and the distribution that brings it."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of zarr-python, in force from before the array is opened until after it was last read."""

    def why_absent(self) -> str | None:
        """Say what is missing for this reader on this machine, or None. Imports nothing."""
        if self.needs is not None and not _is_installed(self.needs[0]):
            return f"not installed (pip install {self.needs[1]})"
        fused = PIPELINES["Fused"] in self.settings.values()
        if fused and not hasattr(codec_pipeline, "FusedCodecPipeline"):  # can go with zarr-python 3.2
            return "not in this zarr-python (pip install 'zarr>=3.3')"
        missing = missing_for_cuda() if self.device == "cuda" else []
        return "missing: " + ", ".join(missing) if missing else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent of a dotted name is absent
        return False


# ---- stored values


def _open_zarr(location: Location) -> ReadBox:
    array = location.open_array()
    return lambda box: array[box]


def _open_kvikio(location: Location) -> ReadBox:
    store = importlib.import_module("kvikio.zarr").GDSStore(location.local_folder())
    array = zarr.open_array(store, mode="r")
    return lambda box: array[box]


def _open_tensorstore(location: Location) -> ReadBox:
    folder = location.local_folder()
    driver = "zarr3" if (folder / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{folder}/"}}
    store = importlib.import_module("tensorstore").open(spec, open=True, read=True).result()
    return lambda box: np.asarray(store[box].read(order="C").result())


def _open_zarrista(location: Location) -> ReadBox:
    folder = location.local_folder()
    if not (folder / "zarr.json").exists():
        raise AbsentError("reads Zarr v3 only")
    zarrista = importlib.import_module("zarrista")
    store = importlib.import_module("zarrista.store").FilesystemStore(folder)
    try:
        array = zarrista.Array.open(store)
    except importlib.import_module("zarrista.exceptions").ArrayCreateError as error:  # a codec that it lacks
        raise AbsentError(str(error)) from error
    return lambda box: array[box].to_numpy()


def _gpuzarr_opener(device: Device) -> Callable[[Location], ReadBox]:
    def open_gpuzarr(location: Location) -> ReadBox:
        array = location.open_array()
        return lambda box: read_array(array, box, device=device)

    return open_gpuzarr


# ---- decoded variables


def open_variable(location: Location, engine: str, chunking: Chunking, **options: Any) -> xr.Variable:
    """Return a variable that is read anew every time it is computed.

    Parameters
    ----------
    location : Location
    engine : str
        Of `xarray.open_dataset`.
    chunking : "no dask", "chunks={}" or "chunks=shards"
    options
        Further keywords of `xarray.open_dataset`.
    """
    dataset = xr.open_dataset(
        location.store,
        engine=engine,
        group=location.group or None,
        chunks=_dask_chunks(location, chunking),
        cache=False,  # a lazy variable would keep what it has read
        **location.given,
        **options,
    )
    return dataset[location.variable].variable


def _dask_chunks(location: Location, chunking: Chunking) -> dict[Any, int] | None:
    if chunking != "chunks=shards":
        return None if chunking == "no dask" else {}
    dims = open_variable(location, "zarr", "no dask").dims
    array = location.open_array()
    return dict(zip(dims, array.shards or array.chunks, strict=True))


def _xarray_opener(engine: str, chunking: Chunking, device: Device) -> Callable[[Location], ReadBox]:
    options = {"device": device} if engine == "gpuzarr" else {}

    def open_xarray(location: Location) -> ReadBox:
        variable = open_variable(location, engine, chunking, **options)
        return lambda box: variable[box].compute().data

    return open_xarray


# ---- the registry


def _pipeline(name: str) -> dict[str, object]:
    # Strict: a codec that zarrs lacks is an error here instead of a silent change to zarr-python.
    return {"codec_pipeline.path": PIPELINES[name], "codec_pipeline.strict": True}


_ZARRS = ("zarrs", "zarrs")


def _zarr_by(pipeline: str) -> ArrayReader:
    name, needs = ("zarrs", _ZARRS) if pipeline == "zarrs" else (f"zarr {pipeline}", None)
    return ArrayReader(name=name, operation="read", open=_open_zarr, needs=needs, settings=_pipeline(pipeline))


def _xarray_zarr(pipeline: str, chunking: Chunking) -> ArrayReader:
    return ArrayReader(
        name=f"xarray zarr {pipeline}, {chunking}",
        operation="load",
        open=_xarray_opener("zarr", chunking, "host"),
        needs=_ZARRS if pipeline == "zarrs" else None,
        settings=_pipeline(pipeline),
    )


def _xarray_gpuzarr(chunking: Chunking, device: Device) -> ArrayReader:
    return ArrayReader(
        name=f"xarray gpuzarr{' cuda' if device == 'cuda' else ''}, {chunking}",
        operation="load",
        open=_xarray_opener("gpuzarr", chunking, device),
        ours=True,
        device=device,
        settings=_pipeline("default"),
    )


def _gpuzarr(name: str, device: Device) -> ArrayReader:
    return ArrayReader(
        name=name,
        operation="read",
        open=_gpuzarr_opener(device),
        ours=True,
        device=device,
        settings=_pipeline("default"),
    )


_GPU_ZARR = _pipeline("default") | _GPU_BUFFERS

_OURS = {"codec_pipeline.path": "xarray_gpuzarr.CodecPipeline", "ndbuffer": "recycled.NDBuffer"}


def _our_pipeline(name: str, device: Device, settings: Mapping[str, object]) -> ArrayReader:
    return ArrayReader(name=name, operation="read", open=_open_zarr, ours=True, device=device, settings=settings)


_READERS = (
    *(_zarr_by(pipeline) for pipeline in PIPELINES),
    ArrayReader(name="TensorStore", operation="read", open=_open_tensorstore, needs=("tensorstore", "tensorstore")),
    ArrayReader(name="zarrista", operation="read", open=_open_zarrista, needs=("zarrista", "zarrista")),
    _gpuzarr("gpuzarr", "host"),
    _our_pipeline("gpuzarr pipeline", "host", _OURS),
    ArrayReader(name="zarr enable_gpu", operation="read", open=_open_zarr, device="cuda", settings=_GPU_ZARR),
    ArrayReader(
        name="zarr enable_gpu, kvikio",
        operation="read",
        open=_open_kvikio,
        device="cuda",
        needs=("kvikio.zarr", "kvikio-cu13"),
        settings=_GPU_ZARR,
    ),
    _gpuzarr("gpuzarr cuda", "cuda"),
    _our_pipeline("gpuzarr pipeline cuda", "cuda", _OURS | _GPU_BUFFERS),
    _xarray_zarr("default", "chunks={}"),
    *(_xarray_zarr(pipeline, "chunks=shards") for pipeline in PIPELINES),
    *(_xarray_zarr(pipeline, "no dask") for pipeline in PIPELINES),
    *(_xarray_gpuzarr(chunking, device) for device in ("host", "cuda") for chunking in ("chunks={}", "no dask")),
)

READERS: Mapping[str, ArrayReader] = {reader.name: reader for reader in _READERS}
"""Name -> reader. The first one of an operation is what the others' values are compared with."""
