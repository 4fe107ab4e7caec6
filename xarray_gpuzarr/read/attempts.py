"""`Attempts`: whether a read that failed is repeated, and with which settings."""

from __future__ import annotations

from xarray_gpuzarr.decoders.choice import decoder_for, is_usable
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    DeviceMemoryError,
    DeviceUnavailableError,
    GpuZarrError,
    OptionError,
    ShardIndexError,
)
from xarray_gpuzarr.fetch.source import ObjectSource
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError, PiecesDifferError
from xarray_gpuzarr.fetch.version_conflicts import Care, VersionConflicts, care_by_store, uncut_stores
from xarray_gpuzarr.process import host_memory
from xarray_gpuzarr.read.changed import changed_metadata
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Attempts:
    """The attempts of one read: the settings of the next attempt, and whether a failed one is repeated.

    Parameters
    ----------
    source : ObjectSource
        Where the array is stored.
    spec : ArraySpec
        The array.
    decoder : Decoder
        Decoder of the first attempt.
    or_host : bool
        Whether the host decodes if the device of `decoder` is unusable.
    """

    def __init__(self, source: ObjectSource, spec: ArraySpec, decoder: Decoder, *, or_host: bool) -> None:
        self._source, self._spec, self._or_host = source, spec, or_host
        if or_host and not is_usable(decoder):
            decoder = decoder_for("host")
        self.decoder = decoder
        """Decoder of the next attempt."""
        # `identity` is looked up only if a store has needed more care, or whole objects, in this process.
        self.care = care_by_store.get(source.identity, Care.USUAL) if care_by_store else Care.USUAL
        """How the next attempt makes sure that all bytes of a shard come from one version."""
        self.use_cache = True
        """Whether the next attempt may use cached indexes. False once one of them may be outdated."""
        self.cuts_objects = not uncut_stores or source.identity not in uncut_stores
        """Whether the next attempt may request an object in pieces."""
        self.seen_shards: dict[str, bool] = {}
        """Shards whose index some attempt has used: by key, True if the store was asked for it, False if it was only
        found in the cache."""
        self._versions: VersionConflicts | None = None
        """Versions of objects that earlier attempts have met."""
        self.is_alone = False
        """Whether the next attempt has the device to itself."""
        self._retried: set[type] = set()
        """Types of the errors after which the read was repeated because memory was freed, or because the decoder
        allowed it. That is done once for each type."""

    def prepare_retry(self, err: Exception) -> bool:
        """Set up the next attempt after an error. Return whether there is one; if not, the caller raises the error.

        A read is repeated if an object was replaced, pieces of an object were of several versions, memory was short, or
        the device is unusable or has decoded other values than the host. This function adds the name of the store to
        the error. It raises `MetadataError` if chunks could not be decoded because the array's metadata have changed.
        """
        if isinstance(err, GpuZarrError) and not isinstance(err, OptionError):  # options are not a matter of the store
            err.within(self._source.name)
        if isinstance(err, PiecesDifferError):
            if err.never_cut:
                uncut_stores.add(self._source.identity)
            was_cut = self.cuts_objects
            self.cuts_objects = False
            return was_cut  # if it was not, the next attempt would fail in the same way
        if isinstance(err, ObjectChangedError):
            self.use_cache = False
            versions = self._versions = self._versions or VersionConflicts(self._source, self.care)
            is_repeated = versions.should_retry(err)
            self.care = versions.care  # `should_retry` may have increased it
            return is_repeated
        if isinstance(err, DeviceUnavailableError) and self._or_host and not is_usable(self.decoder):
            self.decoder = decoder_for("host")
            return True
        if isinstance(err, CorruptChunkError | ShardIndexError):
            changed = changed_metadata(self._source, self._spec.path, self._spec.metadata)
            if changed is not None:
                raise changed.within(self._source.name) from err
        elif isinstance(err, MemoryError) and not isinstance(err, GpuZarrError) and MemoryError not in self._retried:
            self._retried.add(MemoryError)
            host_memory.release_kept()
            return True
        elif type(err) not in self._retried and self.decoder.may_retry(err):
            self._retried.add(type(err))
            self.is_alone = isinstance(err, DeviceMemoryError)
            return True
        return False
