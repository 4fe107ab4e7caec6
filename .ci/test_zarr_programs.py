"""Other people's programs read the same with this package's codec pipeline: `make test-zarr` runs them.

anndata keeps tables of cells, ome-zarr pyramids of images; both know nothing of this package.
"""

import anndata
import numpy as np
import ome_zarr.format
import pandas as pd
import pytest
import scipy.sparse
import zarr
from anndata.tests.helpers import assert_equal
from ome_zarr.io import parse_url
from ome_zarr.reader import Reader as OmeReader
from ome_zarr.writer import write_image

from xarray_gpuzarr import zarr_pipeline
from xarray_gpuzarr.codec_pipeline.reading import ArrayReader

RNG = np.random.default_rng(7)
N_CELLS, N_GENES = 200, 50
TEXT = ("obs/_index/", "var/_index/", "obs/kind/categories/", "obs/name/")
"""Arrays of the table that are no numbers."""


@pytest.fixture
def reads(monkeypatch):
    """Keys of the first chunks of reads that this package carries out, and of those that it leaves to zarr-python."""
    read, noted = ArrayReader.read, {True: [], False: []}

    async def noting(reader, batch, *arguments):
        is_done = await read(reader, batch, *arguments)
        noted[is_done].append(batch[0][0].path)
        return is_done

    monkeypatch.setattr(ArrayReader, "read", noting)
    return noted


@pytest.fixture(params=[2, 3])
def cells(request, tmp_path, monkeypatch):
    """Path of a table of cells."""
    counts = scipy.sparse.random(N_CELLS, N_GENES, 0.1, "csr", dtype="f4", rng=RNG)
    obs = {
        "n": RNG.integers(0, 9, N_CELLS),
        "kind": pd.Categorical(RNG.choice(["a", "b"], N_CELLS)),
        "name": [f"cell {n}" for n in range(N_CELLS)],
    }
    table = anndata.AnnData(
        counts,
        obs=pd.DataFrame(obs, index=[f"c{n}" for n in range(N_CELLS)]),
        var=pd.DataFrame(index=[f"g{n}" for n in range(N_GENES)]),
        layers={"dense": RNG.random((N_CELLS, N_GENES)), "columns": counts.tocsc()},
        obsm={"place": RNG.random((N_CELLS, 3))},
        obsp={"distance": counts @ counts.T},
        uns={"settings": {"values": np.arange(4), "one": 2.5}},
    )
    monkeypatch.setattr(anndata.settings, "zarr_write_format", request.param)
    table.write_zarr(tmp_path / "cells.zarr", chunks=(32, N_GENES))
    return tmp_path / "cells.zarr"


def test_anndata_reads_the_same(cells, reads):
    expected = anndata.read_zarr(cells)

    with zarr_pipeline():
        found = anndata.read_zarr(cells)

    assert_equal(found, expected, exact=True)
    assert all(key.startswith(TEXT) for key in reads[False])
    arrays = {"X/data", "X/indices", "X/indptr", "layers/columns/data", "layers/dense", "obsm/place", "obs/n"}
    assert all(any(key.startswith(name) for key in reads[True]) for name in arrays)


@pytest.mark.parametrize("name", ["X", "layers/columns"])
def test_anndata_reads_parts_of_sparse_arrays(cells, reads, name):
    whole = anndata.read_zarr(cells)
    whole = whole.X if name == "X" else whole.layers["columns"]

    with zarr_pipeline():
        lazy = anndata.io.sparse_dataset(zarr.open_group(cells, mode="r")[name])
        for key in (np.s_[3:20], np.s_[:, 4:9], np.s_[[7, 190, 2]], np.s_[5]):
            assert (lazy[key] != whole[key]).nnz == 0
    assert reads[True]
    assert not reads[False]


def test_anndata_reads_lazily(cells, reads):
    expected = anndata.read_zarr(cells)

    with zarr_pipeline():
        found = anndata.experimental.read_lazy(cells)[10:150].to_memory()

    assert_equal(found.X, expected[10:150].X, exact=True)
    assert_equal(found.layers["dense"], expected[10:150].layers["dense"], exact=True)
    assert any(key.startswith("layers/dense") for key in reads[True])


@pytest.mark.parametrize("version", ["V04", "V05"])
def test_images_of_ome_zarr_are_the_same(version, tmp_path, reads):
    image = RNG.integers(0, 500, (2, 8, 64, 80)).astype("u2")
    options = {"fmt": getattr(ome_zarr.format, f"Format{version}")(), "storage_options": {"chunks": (1, 4, 16, 20)}}
    write_image(image, str(tmp_path), axes="czyx", **options)

    def pyramid():
        (node,) = OmeReader(parse_url(str(tmp_path)))()
        return [level.compute() for level in node.data]

    expected = pyramid()
    assert not reads[True]
    with zarr_pipeline():
        found = pyramid()

    np.testing.assert_array_equal(found[0], image)
    assert len(found) == len(expected) > 1
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert reads[True]
    assert not reads[False]
