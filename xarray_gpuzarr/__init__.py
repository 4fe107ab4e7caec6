"""Zarr shards straight to the GPU, through xarray: ``xr.open_dataset(store, engine="gpuzarr", chunks={})``.

xarray imports this whenever something is opened without ``engine=``, so names are imported when they are first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster import GpuZarrPlugin, register, stats
    from xarray_gpuzarr.codec_pipeline import CodecPipeline, NDBuffer, zarr_pipeline
    from xarray_gpuzarr.codec_pipeline.explanation import explain
    from xarray_gpuzarr.cuda.configuration import configure
    from xarray_gpuzarr.errors import (
        ArrayTypeError,
        CorruptChunkError,
        CudaError,
        DeviceMemoryError,
        DeviceUnavailableError,
        GpuZarrError,
        GpuZarrWarning,
        HostMemoryError,
        KeywordError,
        MetadataError,
        NativeLayoutError,
        NoGroupError,
        OptionError,
        SelectionError,
        ShardIndexError,
        StoreReadError,
        StoreWriteError,
        UnsupportedCodecError,
    )
    from xarray_gpuzarr.fetch.strict import MissingChunkError
    from xarray_gpuzarr.machine.diagnosis import doctor
    from xarray_gpuzarr.process.device_options import ResourceOptions
    from xarray_gpuzarr.process.fetch_options import FetchOptions
    from xarray_gpuzarr.process.progress_bar import progress
    from xarray_gpuzarr.read import read_array
    from xarray_gpuzarr.training import Batches, batches

__version__: str

__all__ = [
    "ArrayTypeError",
    "Batches",
    "CodecPipeline",
    "CorruptChunkError",
    "CudaError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "FetchOptions",
    "GpuZarrError",
    "GpuZarrPlugin",
    "GpuZarrWarning",
    "HostMemoryError",
    "KeywordError",
    "MetadataError",
    "MissingChunkError",
    "NDBuffer",
    "NativeLayoutError",
    "NoGroupError",
    "OptionError",
    "ResourceOptions",
    "SelectionError",
    "ShardIndexError",
    "StoreReadError",
    "StoreWriteError",
    "UnsupportedCodecError",
    "batches",
    "configure",
    "doctor",
    "explain",
    "progress",
    "read_array",
    "register",
    "stats",
    "zarr_pipeline",
]

_HOMES = dict.fromkeys(__all__, "errors") | {
    "Batches": "training",
    "CodecPipeline": "codec_pipeline",
    "FetchOptions": "process.fetch_options",
    "GpuZarrPlugin": "cluster",
    "MissingChunkError": "fetch.strict",
    "NDBuffer": "codec_pipeline",
    "ResourceOptions": "process.device_options",
    "batches": "training",
    "configure": "cuda.configuration",
    "doctor": "machine.diagnosis",
    "explain": "codec_pipeline.explanation",
    "progress": "process.progress_bar",
    "read_array": "read",
    "register": "cluster",
    "stats": "cluster",
    "zarr_pipeline": "codec_pipeline",
}
"""The module below this one that each name comes from."""
_MODULES = {"accessor": "backend.accessor", "backend": "backend", "cluster": "cluster", "errors": "errors"}
"""Modules that are looked up as names are; all others have to be imported."""


class _XarrayFinder:
    """Registers ``.gpuzarr`` as soon as xarray has been imported, and finds no module of its own.

    Importing xarray here instead would take whoever uses zarr-python alone, or the command line, 2 seconds of one core
    more (November 2026). The loader stays the one that was found, since others ask it for sources and resources.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the other finders find of xarray, with a loader that then registers the accessors."""
        if name != "xarray":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.exec_module = execute
            execute(module)
            import_module("xarray_gpuzarr.backend.registration")
            if self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module
        return spec


if "xarray" in sys.modules:
    import_module("xarray_gpuzarr.backend.registration")
else:
    sys.meta_path.insert(0, _XarrayFinder())

if not TYPE_CHECKING:  # a type checker is to miss names that are not there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{_MODULES[name]}")
        if name == "__version__":
            metadata = import_module("importlib.metadata")
            try:
                return metadata.version("xarray-gpuzarr")
            except metadata.PackageNotFoundError:  # a folder that is used without being installed
                return ""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
