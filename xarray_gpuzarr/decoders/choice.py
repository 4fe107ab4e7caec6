"""Which decoder reads here, and what a machine lacks for a GPU. `decoder_for` is the one place that chooses."""

from __future__ import annotations

import copyreg
import importlib.util
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy.typing as npt

from xarray_gpuzarr.cuda import driver
from xarray_gpuzarr.cuda.configuration import native_device
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.decoders.protocol import Decoder, Device, FileReader, SelfChecking
from xarray_gpuzarr.decoders.workers.decoder import CupyStandIn, WorkersDecoder
from xarray_gpuzarr.errors import DeviceUnavailableError, OptionError, perhaps
from xarray_gpuzarr.fetch.source import Storage
from xarray_gpuzarr.process.advice import advise

if TYPE_CHECKING:
    from xarray_gpuzarr.decoders.cuda import CudaDecoder

_CUDA_NEEDS = {"cupy": "CuPy", "rmm": "RMM", "nvidia.libnvcomp": "nvCOMP (nvidia-libnvcomp)"}
_DEVICES = ("auto", "cuda", "host", "workers")
_AS_EVER = frozenset({"auto", "posix"})
"""Ways of local files to a device that every device has."""
_ELSEWHERE = {"cpu": "host", "gpu": "cuda"}
"""Names of devices in other packages -> names here."""
_NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]{0,3})")
_PER_THREAD = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
INSTALL_FOR_CUDA = "pip install 'xarray-gpuzarr[cuda13]' (or cuda12, as the driver has it)"


def missing_for_cuda() -> list[str]:
    """Return what ``device="cuda"`` needs and this machine lacks; empty if nothing.

    Imports no GPU package and does not start CUDA, which a process that forks must not: looks for the driver library,
    asks NVML for GPUs, and looks for installed modules.
    """
    missing = [] if driver.has_driver() else ["the NVIDIA driver (libcuda)"]
    missing += ["a GPU that this process may use"] if not missing and _n_visible() == 0 else []
    for module, label in _CUDA_NEEDS.items():
        try:
            missing += [] if importlib.util.find_spec(module) is not None else [label]
        except (ModuleNotFoundError, ValueError):  # the parent of a dotted name is absent; a module without a spec
            missing.append(label)
    return missing


def _n_visible() -> int | None:
    """Return how many GPUs this process may use, as far as that shows without CUDA; None if it does not."""
    count, listed = driver.n_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count
    # CUDA sees none of those that stand behind one that does not exist.
    seen = list(takewhile(lambda name: name not in {"", "-1"}, map(str.strip, listed.split(","))))
    return len(seen) if count is None else min(count, len(seen))


def resolve_storage(storage: str, device: str) -> Storage:
    """Check how local files are to reach a device.

    Raises
    ------
    OptionError
        `storage` is none of ``"auto"``, ``"posix"``, ``"gds"``, or ``"gds"`` was asked for and results are on the host.
    DeviceUnavailableError
        ``"gds"`` was asked for, and this machine lacks something for it.
    """
    if storage in _AS_EVER:
        return cast("Storage", storage)
    if storage not in get_args(Storage):
        raise OptionError(
            "unknown storage",
            tried=f"storage={storage!r}",
            found="valid options: " + ", ".join(map(repr, get_args(Storage))),
            do="leave storage out, or choose one of these",
        )
    from xarray_gpuzarr.cuda.gds_files import no_direct_files  # noqa: PLC0415  # where it is asked for

    resolved = resolve_device(device)
    if resolved == "host":
        raise OptionError(
            'storage="gds" cannot be used here',
            tried=f"storage='gds' with device={device!r}",
            found="results live on the host; GPUDirect Storage reads into the memory of a GPU",
            do="leave storage out"
            + (": this machine has no usable GPU" if resolve_device("auto") == "host" else ', or say device="cuda"'),
        )
    decoder = None if resolved == "workers" else decoder_for(resolved)
    why = decoder.why_no_files() if isinstance(decoder, FileReader) else None
    if why is not None:
        raise no_direct_files(why)
    return "gds"


def resolve_device(device: str) -> Device:
    """Turn ``"auto"`` into the device that reads will use here.

    Raises
    ------
    OptionError
        `device` is none of ``"auto"``, ``"cuda"``, ``"cuda:0"`` or another number, ``"host"``, ``"workers"``.
    DeviceUnavailableError
        ``"cuda"`` was asked for and something that it needs is missing, or there is no GPU of that number, or CuPy's
        stream is another one on each thread.
    """
    if not is_device(device):
        raise OptionError(
            "unknown device",
            tried=f"device={device!r}",
            found="valid options: 'auto', 'cuda', 'host', 'workers', and a GPU by its number, such as 'cuda:1'",
            do="leave device out, or choose one of these" + perhaps_device(device),
        )
    if device in ("host", "workers"):
        return device
    missing = missing_for_cuda()
    if not missing:
        number, count = _number(device), _n_visible()
        if number is not None and count is not None and number >= count:
            raise DeviceUnavailableError(
                f"device='cuda:{number}' cannot be used here",
                tried="the GPUs that this process may use, counted from 0",
                found=f"{count}, the last of them 'cuda:{count - 1}'",
                do="give the number of one of them, as CUDA_VISIBLE_DEVICES leaves them, or device='cuda'",
            )
        return _with_one_stream(device)
    lacks_packages_only = set(missing) <= set(_CUDA_NEEDS.values())
    if device != "auto":
        where = "" if lacks_packages_only else "on a machine with an NVIDIA GPU and its driver: "
        raise DeviceUnavailableError(
            f"device={device!r} cannot be used here",
            tried="the NVIDIA driver, CuPy, RMM and nvCOMP",
            found="missing: " + ", ".join(missing),
            do=f"{where}{INSTALL_FOR_CUDA}; or read on the host with device='auto' or device='host'",
        )
    if lacks_packages_only:
        advise(
            "packages",
            "this machine has a GPU, and device='auto' reads to the host",
            found="missing: " + ", ".join(missing),
            do=f"{INSTALL_FOR_CUDA}; device='host' if that is meant",
        )
    return "host"


def _with_one_stream(device: str) -> Device:
    """Return the device that is read to, unless CuPy works on another stream on each thread; imports no CuPy."""
    setting = os.environ.get(_PER_THREAD, "0")
    if setting == "0":
        return "cuda" if device == "auto" else device
    found = f"{_PER_THREAD}={setting}: arrays may be freed on threads where that stream is another one"
    do = f"unset {_PER_THREAD} for this process and for workers; device='host' reads without the GPU"
    if device != "auto":
        headline = "cannot read to CuPy's per-thread default streams"
        raise DeviceUnavailableError(headline, tried=f"device={device!r}", found=found, do=do)
    advise(_PER_THREAD, "this machine has a GPU, and device='auto' reads to the host", found=found, do=do)
    return "host"


def perhaps_device(device: object, known: Iterable[str] = _DEVICES) -> str:
    """Return words that offer which of the known devices was perhaps meant; none if there is none."""
    name = str(device)
    return perhaps(_ELSEWHERE.get(name, name), known)


def is_device(device: str) -> bool:
    """Say whether a device has a name that `resolve_device` knows, whatever this machine has."""
    return device in _DEVICES or _number(device) is not None


def _number(device: str) -> int | None:
    """Return which GPU is named; None if none is."""
    named = _NUMBERED.fullmatch(device) if isinstance(device, str) else None
    return None if named is None else int(named[1])


@cache
def decoder_for(device: str) -> Decoder:
    """Return the decoder of a device, one per process; raises as `resolve_device`."""
    resolved = resolve_device(device)
    if resolved != device:
        return decoder_for(resolved)
    if resolved == "host":
        return HostDecoder()
    number = _number(resolved)
    if number is not None:
        return cast("CudaDecoder", decoder_for("cuda")).for_device(number)
    from xarray_gpuzarr.decoders import cuda  # noqa: PLC0415  # its kernels, plans and checks

    decoder: Decoder = cuda.CudaDecoder()
    return decoder if resolved == "cuda" else WorkersDecoder(decoder, missing_for_cuda, lambda: decoder_for("cuda"))


def usable_device(device: str) -> Device:
    """Turn ``"auto"`` into the device that reads can use here, as `resolve_device`, and ask it: that starts CUDA."""
    resolved = resolve_device(device)
    return "host" if device == "auto" and not is_usable(decoder_for(resolved)) else resolved


def is_usable(decoder: Decoder) -> bool:
    """Say whether the device of a decoder can be used; starts it."""
    return not isinstance(decoder, SelfChecking) or decoder.why_unusable() is None


def by_usable[Result](decoder: Decoder, read: Callable[[Decoder], Result], *, or_host: bool) -> Result:
    """Return what `read` does with a decoder; with the host's if its device cannot even copy, or breaks meanwhile.

    `or_host` says whether the host will do, as with ``"auto"``. Asking the device starts it.
    """
    if not or_host:
        return read(decoder)
    if is_usable(decoder):
        try:
            return read(decoder)
        except DeviceUnavailableError:
            if is_usable(decoder):
                raise
    return read(decoder_for("host"))


def _unpack(host: npt.NDArray[Any]) -> Any:
    """Return a CuPy array where there is a GPU; schedulers that have none pass a stand-in on."""
    if missing_for_cuda():
        return CupyStandIn(host)
    api = native_device()
    with api.activate():
        return api.array(host)


copyreg.pickle(CupyStandIn, lambda stand_in: (_unpack, (stand_in.get(),)))
