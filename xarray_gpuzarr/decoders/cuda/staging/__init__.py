"""How chunks come to the device: through pinned slots, or straight from files if that is asked for."""

from __future__ import annotations

from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.streams import ENVELOPES
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.decoders.faults import no_direct_files
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.stored.array_spec import ArraySpec


def why_not_chain(chain: Chain) -> str | None:
    """Say why the host must see all bytes of chunks that are stored so; None if it need not."""
    if chain.checksums:
        return "checksums around chunks are checked on the host"
    if chain.compressor is not None and ENVELOPES[type(chain.compressor)] is None:
        return "Blosc frames are walked on the host"
    return None


def stager_for(
    workspace: Workspace, source: ByteSource, spec: ArraySpec, *, chain: Chain, choice: Choice | None = None
) -> Stager:
    """Return what brings chunks of an array to the device.

    Raises
    ------
    DeviceUnavailableError
        ``storage="gds"`` was asked for, and this device cannot read files.
    """
    if source.storage != "gds" or why_not_chain(chain) is not None:
        return Stager(workspace, source, spec, chain=chain, choice=choice)
    why_not = workspace.api.why_no_files()
    if why_not is not None:
        raise no_direct_files(why_not)
    from xarray_gpuzarr.decoders.cuda.staging.direct import DirectStager  # noqa: PLC0415  # only where it is asked for

    return DirectStager(workspace, source, spec, chain=chain, choice=choice)
