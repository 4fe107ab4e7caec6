"""A store of files that fails now and then, for workers: it can be pickled, and fails anew in each process."""

from typing import Any

from zarr.abc.store import ByteRequest, Store

from helpers.stores.fakes import Wrapper, is_data


class FlakyStore(Wrapper):
    """Every third request for chunk bytes fails, in each process that it gets to.

    Parameters
    ----------
    store : Store
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._n_requests = 0

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        if is_data(key):
            self._n_requests += 1
            if self._n_requests % 3 == 0:
                raise TimeoutError("the network was down")
        return await super().get(key, prototype, byte_range)
