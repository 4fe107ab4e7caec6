"""Choice of the decoder for a device, and checks of what a machine lacks for a GPU.

`decoder_for` returns the decoder; no other function chooses one. `usable_device` and `read_with_usable` turn to the
host instead if a GPU turns out to be unusable.
"""

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
from xarray_gpuzarr.cuda.find_gpu import native_device
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.decoders.protocol import Decoder, Device, FileReader, SelfChecking
from xarray_gpuzarr.decoders.workers.decoder import CupyStandIn, WorkersDecoder
from xarray_gpuzarr.errors import DeviceUnavailableError, OptionError, similar_name_hint
from xarray_gpuzarr.fetch.source import Storage
from xarray_gpuzarr.process.advice import advise

if TYPE_CHECKING:
    from xarray_gpuzarr.decoders.cuda import CudaDecoder

_CUDA_PACKAGES = {"cupy": "CuPy", "rmm": "RMM", "nvidia.libnvcomp": "nvCOMP (nvidia-libnvcomp)"}
"""Packages that `device="cuda"` needs: name of the module, and name in messages."""
_DEVICES = ("auto", "cuda", "host", "workers")
_ALWAYS_AVAILABLE = frozenset({"auto", "posix"})
"""Values of `storage` that every device accepts."""
_OTHER_NAMES = {"cpu": "host", "gpu": "cuda"}
"""Names of devices in other packages, and the names here."""
_NUMBERED = re.compile(r"cuda:(0|[1-9][0-9]{0,3})")
_PER_THREAD = "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"
"""Environment variable that lets CuPy use a default stream per thread, unless it is 0."""
INSTALL_FOR_CUDA = "pip install 'xarray-gpuzarr[cuda13]' (or cuda12, as the driver has it)"


def missing_for_cuda() -> list[str]:
    """Return what ``device="cuda"`` needs and this machine lacks; an empty list if nothing is missing.

    This looks for the driver library and for installed modules, and asks NVML for GPUs. It imports no GPU package and
    does not start CUDA, so that the process can still be forked.
    """
    missing = []
    if not driver.has_driver():
        missing.append("the NVIDIA driver (libcuda)")
    elif _n_visible() == 0:
        missing.append("a GPU that this process may use")
    for module, name in _CUDA_PACKAGES.items():
        try:
            is_missing = importlib.util.find_spec(module) is None
        except (ModuleNotFoundError, ValueError):  # a dotted name without its parent, or a module without a spec
            is_missing = True
        if is_missing:
            missing.append(name)
    return missing


def _n_visible() -> int | None:
    """Return the number of GPUs that this process may use; None if it cannot be told without starting CUDA."""
    count = driver.n_gpus()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return count
    # CUDA ignores all entries from the first one on that names no GPU, such as the usual -1.
    visible = list(takewhile(lambda name: name not in {"", "-1"}, map(str.strip, listed.split(","))))
    return len(visible) if count is None else min(count, len(visible))


def resolve_storage(storage: str, device: str) -> Storage:
    """Return the option `storage`, after checking that results on `device` allow it and that this machine has it.

    The option says how local files reach a device.

    Raises
    ------
    OptionError
        If `storage` is not ``"auto"``, ``"posix"`` or ``"gds"``, or is ``"gds"`` for results on the host.
    DeviceUnavailableError
        If `storage` is ``"gds"``, and this machine lacks something for it.
    """
    if storage in _ALWAYS_AVAILABLE:
        return cast("Storage", storage)
    if storage not in get_args(Storage):
        raise OptionError(
            "unknown storage",
            tried=f"storage={storage!r}",
            found="valid options: " + ", ".join(map(repr, get_args(Storage))),
            do="leave storage out, or choose one of these",
        )
    from xarray_gpuzarr.cuda.gds_files import no_gds_error  # noqa: PLC0415  # only for "gds"

    resolved = resolve_device(device)
    if resolved == "host":
        if resolve_device("auto") == "host":
            remedy = "leave storage out: this machine has no usable GPU"
        else:
            remedy = 'leave storage out, or say device="cuda"'
        raise OptionError(
            'storage="gds" cannot be used here',
            tried=f"storage='gds' with device={device!r}",
            found="results live on the host; GPUDirect Storage reads into the memory of a GPU",
            do=remedy,
        )
    # Results on workers: it is their machines that need GPUDirect Storage, not this one.
    decoder = None if resolved == "workers" else decoder_for(resolved)
    why = decoder.why_no_gds() if isinstance(decoder, FileReader) else None
    if why is not None:
        raise no_gds_error(why)
    return "gds"


def resolve_device(device: str) -> Device:
    """Return the device that reads use on this machine: `device` itself, or the best one for ``"auto"``.

    Raises
    ------
    OptionError
        If `device` is not ``"auto"``, ``"cuda"``, ``"cuda:0"`` or another number, ``"host"`` or ``"workers"``.
    DeviceUnavailableError
        If a GPU was requested and cannot be used: something that it needs is missing, no GPU has that number, or CuPy
        is set to use a default stream per thread.
    """
    if not is_device(device):
        raise OptionError(
            "unknown device",
            tried=f"device={device!r}",
            found="valid options: 'auto', 'cuda', 'host', 'workers', and a GPU by its number, such as 'cuda:1'",
            do="leave device out, or choose one of these" + similar_device_hint(device),
        )
    if device in ("host", "workers"):
        return device
    missing = missing_for_cuda()
    if not missing:
        _check_number(device)
        return _resolve_with_gpu(device)
    lacks_packages_only = set(missing) <= set(_CUDA_PACKAGES.values())
    if device != "auto":
        condition = "" if lacks_packages_only else "on a machine with an NVIDIA GPU and its driver: "
        raise DeviceUnavailableError(
            f"device={device!r} cannot be used here",
            tried="the NVIDIA driver, CuPy, RMM and nvCOMP",
            found="missing: " + ", ".join(missing),
            do=f"{condition}{INSTALL_FOR_CUDA}; or read on the host with device='auto' or device='host'",
        )
    if lacks_packages_only:
        advise(
            "packages",
            "this machine has a GPU, and device='auto' reads to the host",
            found="missing: " + ", ".join(missing),
            do=f"{INSTALL_FOR_CUDA}; device='host' if that is meant",
        )
    return "host"


def _check_number(device: str) -> None:
    """Raise `DeviceUnavailableError` if `device` has a number, and this process has no GPU with that number."""
    number = _number(device)
    count = _n_visible()
    if number is not None and count is not None and number >= count:
        raise DeviceUnavailableError(
            f"device='cuda:{number}' cannot be used here",
            tried="the GPUs that this process may use, counted from 0",
            found=f"{count}, the last of them 'cuda:{count - 1}'",
            do="give the number of one of them, as CUDA_VISIBLE_DEVICES leaves them, or device='cuda'",
        )


def _resolve_with_gpu(device: str) -> Device:
    """Return the device that reads use, on a machine that has all that a GPU needs. CuPy is not imported.

    If the environment sets CuPy to a default stream per thread, this is the host for ``"auto"``, and an error for a GPU
    that was requested.
    """
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


def similar_device_hint(device: object, known: Iterable[str] = _DEVICES) -> str:
    """Return words that suggest the device of `known` with the most similar name; an empty string if there is none."""
    name = str(device)
    return similar_name_hint(_OTHER_NAMES.get(name, name), known)


def is_device(device: str) -> bool:
    """Whether `resolve_device` knows the name of a device, whatever this machine has."""
    return device in _DEVICES or _number(device) is not None


def _number(device: str) -> int | None:
    """Return the number in the name of a device; None if there is none."""
    match = _NUMBERED.fullmatch(device) if isinstance(device, str) else None
    return None if match is None else int(match[1])


@cache
def decoder_for(device: str) -> Decoder:
    """Return the decoder of a device, always the same one in a process. Raises the errors of `resolve_device`."""
    resolved = resolve_device(device)
    if resolved != device:
        return decoder_for(resolved)
    if resolved == "host":
        return HostDecoder()
    number = _number(resolved)
    if number is not None:
        return cast("CudaDecoder", decoder_for("cuda")).for_device(number)
    from xarray_gpuzarr.decoders import cuda  # noqa: PLC0415  # imports much that the host does not need

    decoder: Decoder = cuda.CudaDecoder()
    if resolved == "cuda":
        return decoder
    # "workers": this may be a client without a GPU, where `decoder_for("cuda")` fails. So only a read calls it.
    return WorkersDecoder(decoder, missing_for_cuda, lambda: decoder_for("cuda"))


def usable_device(device: str) -> Device:
    """Return `resolve_device(device)`, or ``"host"`` if `device` is "auto" and the GPU is unusable.

    For ``"auto"``, this starts CUDA if there is a GPU.
    """
    resolved = resolve_device(device)
    return "host" if device == "auto" and not is_usable(decoder_for(resolved)) else resolved


def is_usable(decoder: Decoder) -> bool:
    """Whether the device of a decoder can be used. This starts the device."""
    return not isinstance(decoder, SelfChecking) or decoder.why_unusable() is None


def read_with_usable[Result](decoder: Decoder, read: Callable[[Decoder], Result], *, or_host: bool) -> Result:
    """Call `read` with a decoder, or with the host's decoder if the device is unusable, and return its result.

    Parameters
    ----------
    decoder : Decoder
        Decoder to try first.
    read : callable
        Takes a decoder.
    or_host : bool
        Whether the host's decoder may be used, as for ``device="auto"``. If so, the device is started and checked.
    """
    if not or_host:
        return read(decoder)
    if is_usable(decoder):
        try:
            return read(decoder)
        except DeviceUnavailableError:
            # The device may have become unusable since it was checked; the host then reads. Otherwise, the error has
            # another cause.
            if is_usable(decoder):
                raise
    return read(decoder_for("host"))


def _unpack(host: npt.NDArray[Any]) -> Any:
    """Return values as a CuPy array, or as a stand-in on a machine without GPU, such as that of a scheduler."""
    if missing_for_cuda():
        return CupyStandIn(host)
    api = native_device()
    with api.activate():
        return api.array(host)


# A stand-in that is sent to a machine with a GPU becomes a CuPy array there.
copyreg.pickle(CupyStandIn, lambda stand_in: (_unpack, (stand_in.get(),)))
