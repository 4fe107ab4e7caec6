"""`ObstoreClient`: stores of obstore, whose results have the version and the range of their bytes."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.remote.answers import (
    OTHER_VERSION_ANSWER,
    Answer,
    Marks,
    WrongBytesError,
    length_only_answer,
    version_of,
)
from xarray_gpuzarr.fetch.remote.servers import digest, obstore_server
from xarray_gpuzarr.fetch.remote.store_clients import ABSENT, SUFFIX_ATTEMPTS, is_too_short, suffix_range
from xarray_gpuzarr.fetch.stores import is_obstore_memory
from xarray_gpuzarr.stored.codecs import NO_LIMIT


class ObstoreClient:
    """A store of obstore: S3, GCS, Azure, HTTP, local or in memory. obstore itself refuses wrong ranges."""

    lost_by_fork: object = "obstore"

    def __init__(self, store: Any) -> None:
        self._store = store
        self.server = obstore_server(store)
        address = (self.server, getattr(store, "url", None), str(getattr(store, "prefix", None)))
        # The addresses of stores in memory are all the same, and do not tell them apart.
        self.identity: Hashable = None if is_obstore_memory(store) else ("obstore", digest(address))

    async def get(
        self, key: str, request: ByteRequest | None, if_match: str | None = None, most_nbytes: int = NO_LIMIT
    ) -> Answer | None:
        """See `Client.get`."""
        import obstore  # noqa: PLC0415  # an optional dependency

        try:
            result = await self._request(key, request, if_match)
            first, end = result.range
            too_long = length_only_answer(request, end - first, most_nbytes)
            if too_long is not None:
                return too_long
            data = memoryview(await result.bytes_async())
        except ABSENT:
            return None
        except obstore.exceptions.PreconditionError:
            return OTHER_VERSION_ANSWER
        if len(data) != end - first:
            raise WrongBytesError(f"the server sent {len(data)} bytes, and said that they are {first} to {end - 1}")
        meta = result.meta
        version, settled = version_of(
            Marks(meta["e_tag"], meta["version"], meta["size"], meta["last_modified"]), datetime.now(UTC)
        )
        return Answer(data=data, object_nbytes=meta["size"], version=version, settled=settled)

    async def _request(self, key: str, request: ByteRequest | None, if_match: str | None) -> Any:
        """Return obstore's result of a request; see `Client.get`."""
        import obstore  # noqa: PLC0415  # an optional dependency

        try:
            return await obstore.get_async(self._store, key, options=_obstore_options(request, if_match))
        except obstore.exceptions.NotSupportedError:
            if not isinstance(request, SuffixByteRequest):
                raise
        # Azure does not support suffix ranges. The length is requested first, and then a range of the version that has
        # this length. If the object is replaced in between, both are requested again, unless the caller requires a
        # version.
        for n_left in reversed(range(SUFFIX_ATTEMPTS)):
            meta = await obstore.head_async(self._store, key)
            options = _obstore_options(suffix_range(request, meta["size"]), if_match or meta["e_tag"])
            try:
                return await obstore.get_async(self._store, key, options=options)
            except obstore.exceptions.PreconditionError:
                if if_match is not None or not n_left:
                    raise
        raise AssertionError  # the last attempt returns or raises

    async def is_too_short(self, err: Exception, key: str, request: ByteRequest) -> bool:
        """See `Client.is_too_short`. If the text of the error names no status, the length is requested."""
        import obstore  # noqa: PLC0415  # an optional dependency

        async def ask_nbytes() -> int:
            return int((await obstore.head_async(self._store, key))["size"])

        return await is_too_short(err, request, ask_nbytes)


def _obstore_options(request: ByteRequest | None, if_match: str | None) -> Any:
    """Return the options of a request as `obstore.get_async` takes them."""
    options: dict[str, Any] = {} if if_match is None else {"if_match": if_match}
    if isinstance(request, RangeByteRequest):
        options["range"] = (request.start, request.end)
    elif isinstance(request, SuffixByteRequest):
        options["range"] = {"suffix": request.suffix}
    elif request is not None:
        options["range"] = {"offset": request.offset}
    return options
