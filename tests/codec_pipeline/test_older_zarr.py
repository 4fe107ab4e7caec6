"""With zarr-python before 3.2, arrays are read by its own pipeline, whatever its settings say."""

import numpy as np
import zarr
from zarr.storage import MemoryStore

from xarray_gpuzarr import CodecPipeline, explain, zarr_pipeline


def test_an_older_zarr_reads_by_itself_and_is_told_so(monkeypatch):
    monkeypatch.setattr(zarr, "__version__", "3.1.5")
    data = np.arange(24).reshape(4, 6)
    store = MemoryStore()
    zarr.create_array(store, data=data, chunks=(2, 3), shards=(4, 3))

    with zarr_pipeline():
        array = zarr.open_array(store)

    assert not isinstance(array.async_array.codec_pipeline, CodecPipeline)
    assert type(array.async_array.codec_pipeline).__module__ == "zarr.core.codec_pipeline"
    np.testing.assert_array_equal(array[1:, ::2], data[1:, ::2])
    assert str(explain(array)) == "/: zarr-python (zarr-python 3.1.5 is older than 3.2)"
