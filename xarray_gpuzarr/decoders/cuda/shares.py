"""Who decodes a read, where the device could: asked of the cost model, once a read, if there is a calibration.

Without one, the device decodes all that it can. See docs/decisions/ for why a read is never cut in two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xarray_gpuzarr.codecs import BloscSpec
from xarray_gpuzarr.decoders.calibration import Identify, calibration_in_force
from xarray_gpuzarr.decoders.cost import Calibration, first_on_device, whole_read
from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.threads import thread_budget
from xarray_gpuzarr.metadata import ArraySpec
from xarray_gpuzarr.plan import Target


def codec_name(spec: ArraySpec) -> str | None:
    """Return the name that calibrations know the codecs of an array by; None for chains that are never calibrated."""
    chain = chain_of(spec)
    if isinstance(chain, str) or chain.compressor is None or chain.shuffle is not None or chain.elements:
        return None
    return f"blosc {chain.compressor.cname}" if isinstance(chain.compressor, BloscSpec) else str(chain.compressor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """What the calibration in force expects of reads of an array."""

    calibration: Calibration
    codec: str
    """What the calibration calls the array's codecs."""
    chunk_nbytes: int
    n_threads: int

    def host_is_quicker(self, n_chunks: int) -> bool:
        """Say whether the host is done with a read of so many chunks, upload included, before the device."""
        return whole_read(self.calibration, self.codec, n_chunks, self.chunk_nbytes, self.n_threads).n_host > 0

    def explain(self, n_chunks: int) -> str:
        """Say how long either takes, and from how many chunks on the device is quicker."""
        calibration, codec, chunk_nbytes = self.calibration, self.codec, self.chunk_nbytes
        on_host = calibration.host_seconds(codec, n_chunks, chunk_nbytes, self.n_threads)
        on_device = calibration.device_seconds(codec, n_chunks, chunk_nbytes)
        from_here = first_on_device(calibration, codec, chunk_nbytes, self.n_threads)
        more = f"; reads of {from_here} chunks or more are the device's" if from_here else ""
        return (
            f"{n_chunks} chunk{'s'[: n_chunks > 1]} of {chunk_nbytes} bytes: {on_host * 1e3:.3g} ms by "
            f"{self.n_threads} host threads, {on_device * 1e3:.3g} ms on the device, as calibrated on "
            f"{calibration.gpu}{more}"
        )


def host_is_quicker(spec: ArraySpec, target: Target, identify: Identify) -> bool:
    """Say whether the calibration in force expects the host to be done with a read, upload included, before the device.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.
    """
    forecast = _forecast(spec, identify)
    return forecast is not None and forecast.host_is_quicker(target.n_chunks)


def why_host(spec: ArraySpec, identify: Identify) -> str | None:
    """Say why the host decodes a read of one shard (of one chunk, where there are none), or None if it does not.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.
    """
    forecast, n_chunks = _forecast(spec, identify), prod(spec.grid.chunks_per_shard)
    return forecast.explain(n_chunks) if forecast is not None and forecast.host_is_quicker(n_chunks) else None


def _forecast(spec: ArraySpec, identify: Identify) -> _Forecast | None:
    """Return what is expected of an array; None where no calibration is in force, or it does not know the codecs."""
    calibration = calibration_in_force(identify)
    codec = None if calibration is None else codec_name(spec)
    if calibration is None or codec is None or codec not in calibration.codecs:
        return None
    return _Forecast(calibration=calibration, codec=codec, chunk_nbytes=spec.chunk_nbytes, n_threads=thread_budget())
