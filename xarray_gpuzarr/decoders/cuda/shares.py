"""Who decodes a read, where the device could: asked of the cost model, once a read, if there is a calibration.

Without one, the device decodes all that it can. See docs/decisions/ for why a read is never cut in two.
"""

from __future__ import annotations

from math import prod

from xarray_gpuzarr.codecs import BloscSpec
from xarray_gpuzarr.cuda.options import resource_options
from xarray_gpuzarr.decoders.calibration import read_calibration
from xarray_gpuzarr.decoders.cost import Calibration, first_on_device, whole_read
from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.threads import thread_budget
from xarray_gpuzarr.metadata import ArraySpec
from xarray_gpuzarr.plan import BoxTarget, Target


def codec_name(spec: ArraySpec) -> str | None:
    """Return the name that calibrations know the codecs of an array by; None for chains that are never calibrated."""
    chain = chain_of(spec)
    if isinstance(chain, str) or chain.compressor is None or chain.shuffle is not None or chain.elements:
        return None
    return f"blosc {chain.compressor.cname}" if isinstance(chain.compressor, BloscSpec) else str(chain.compressor)


def n_chunks_of(target: Target) -> int:
    """Return how many chunks a target touches, missing ones included."""
    if isinstance(target, BoxTarget):
        return prod(len(pieces.chunk) for pieces in target.pieces)
    return len(target.groups.chunk)


def host_is_quicker(spec: ArraySpec, target: Target) -> bool:
    """Say whether the calibration in force expects the host to be done with a read, upload included, before the device.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.
    """
    found = _calibrated(spec)
    if found is None:
        return False
    calibration, codec = found
    return whole_read(calibration, codec, n_chunks_of(target), spec.chunk_nbytes, thread_budget()).n_host > 0


def why_host(spec: ArraySpec) -> str | None:
    """Say why the host decodes a read of one shard (of one chunk, where there are none), or None if it does not.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.
    """
    found = _calibrated(spec)
    if found is None:
        return None
    calibration, codec = found
    n, n_threads, what = prod(spec.grid.chunks_per_shard), thread_budget(), (codec, spec.chunk_nbytes)
    if not whole_read(calibration, codec, n, spec.chunk_nbytes, n_threads).n_host:
        return None
    on_host = calibration.host_seconds(codec, n, spec.chunk_nbytes, n_threads)
    on_device = calibration.device_seconds(codec, n, spec.chunk_nbytes)
    from_here = first_on_device(calibration, *what, n_threads)
    more = f"; reads of {from_here} chunks or more are the device's" if from_here else ""
    return (
        f"{n} chunk{'s'[: n > 1]} of {spec.chunk_nbytes} bytes: {on_host * 1e3:.3g} ms by {n_threads} host threads, "
        f"{on_device * 1e3:.3g} ms on the device, as calibrated on {calibration.gpu}{more}"
    )


def _calibrated(spec: ArraySpec) -> tuple[Calibration, str] | None:
    """Return the calibration in force and the name that it knows the array's codecs by, or None."""
    path = resource_options().calibration
    if path is None:
        return None
    calibration, codec = read_calibration(path), codec_name(spec)
    return None if codec is None or codec not in calibration.codecs else (calibration, codec)
