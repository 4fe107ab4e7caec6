"""Reads Zarr shards to the GPU or the host through xarray: ``xr.open_dataset(store, engine="gpuzarr", chunks={})``.

xarray imports this package whenever a file is opened without ``engine=``. So the public names are imported only when
they are first used.
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
"""Public name -> module below this package that defines it: `errors`, unless another one is listed."""
_MODULES = {"accessor": "backend.accessor", "backend": "backend", "cluster": "cluster", "errors": "errors"}
"""Attribute -> module that is imported when it is accessed. All other modules have to be imported explicitly."""


class _XarrayFinder:
    """Import hook that registers the accessors ``.gpuzarr`` as soon as xarray has been imported.

    Importing xarray here would take 2 seconds of one core (November 2026), also in the command line and in programs
    that need only zarr-python. The hook replaces `exec_module` of the loader that another finder returns, and not the
    loader itself, because other code asks loaders for sources and resources.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of xarray that another finder finds, with a loader that then registers the accessors."""
        if name != "xarray":
            return None
        spec: Any = None
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    break
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

if not TYPE_CHECKING:  # with this function, type checkers would not report names that do not exist

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(f"{__name__}.{_MODULES[name]}")
        if name == "__version__":
            metadata = import_module("importlib.metadata")
            try:
                return metadata.version("xarray-gpuzarr")
            except metadata.PackageNotFoundError:  # the package is used from a folder, without having been installed
                return ""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
