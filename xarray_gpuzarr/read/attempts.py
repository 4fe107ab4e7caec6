"""Attempts of a read of planned chunks: a read that fails begins again, or raises an error that says what is wrong."""

from __future__ import annotations

from xarray_gpuzarr.decoders import Decoder, decoder_for, is_usable
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    DeviceMemoryError,
    DeviceUnavailableError,
    GpuZarrError,
    OptionError,
    ShardIndexError,
)
from xarray_gpuzarr.fetch import ObjectChangedError, ObjectSource
from xarray_gpuzarr.fetch.version_conflicts import Care, MetVersions, needed
from xarray_gpuzarr.read.changed import changed_metadata
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Attempts:
    """The attempts of one read.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    decoder : Decoder
    or_host : bool
        Whether the host decodes where the device of `decoder` is unusable.
    """

    def __init__(self, source: ObjectSource, spec: ArraySpec, decoder: Decoder, *, or_host: bool) -> None:
        self._source, self._spec, self._or_host = source, spec, or_host
        self.decoder = decoder if not or_host or is_usable(decoder) else decoder_for("host")
        """Of the next attempt."""
        self.care = needed.get(source.identity, Care.USUAL) if needed else Care.USUAL
        """What the next attempt does to have all bytes of a shard from one version."""
        self.use_cache = True
        """Whether indexes that were read before are of use: False once one may be out of date."""
        self._versions: MetVersions | None = None
        self.is_alone = False
        """Whether the next attempt has the device to itself."""
        self._retried: set[type] = set()

    def is_worth_another(self, err: Exception) -> bool:
        """Say whether to try once more after an error; raises another error where that says more of it.

        An object was replaced, the device lacks memory, has decoded to other bytes than the host, or does not work.
        Errors name the store from here on.
        """
        if isinstance(err, GpuZarrError) and not isinstance(err, OptionError):
            err.within(self._source.name)
        if isinstance(err, ObjectChangedError):
            return self._begin_anew(err)
        if isinstance(err, DeviceUnavailableError) and self._or_host and not is_usable(self.decoder):
            self.decoder = decoder_for("host")
            return True
        if isinstance(err, CorruptChunkError | ShardIndexError):
            changed = changed_metadata(self._source, self._spec.path, self._spec.metadata)
            if changed is not None:
                raise changed.within(self._source.name) from err
        elif type(err) not in self._retried and self.decoder.may_retry(err):
            self._retried.add(type(err))
            self.is_alone = isinstance(err, DeviceMemoryError)
            return True
        return False

    def _begin_anew(self, err: ObjectChangedError) -> bool:
        """Say whether to read once more, after an object was found to be of another version."""
        self.use_cache = False
        versions = self._versions = self._versions or MetVersions(self._source, self.care)
        is_worth_it, self.care = versions.again(err), versions.care
        return is_worth_it
