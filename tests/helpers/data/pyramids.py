"""OME-Zarr images: a pyramid of levels, with a pyramid of labels below it, as OME-Zarr 0.4 and 0.5 lay them out."""

import numpy as np
import zarr

N_LEVELS = 3
IMAGE = np.random.default_rng(7).integers(0, 4096, (2, 256, 192), dtype="u2")
"""Channels, rows, columns: level 0."""
CELLS = (IMAGE[0] > 2000).astype("i4")
_AXES = [
    {"name": "c", "type": "channel"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]


def write_pyramid(path, version):
    """Write an image, and its labels ``cells``; version "0.4" is Zarr format 2, "0.5" is format 3."""
    root = zarr.create_group(path, zarr_format=2 if version == "0.4" else 3)
    _write_levels(root, IMAGE, version)
    labels = root.create_group("labels")
    labels.attrs.update(_metadata(version, {"labels": ["cells"]}))
    _write_levels(labels.create_group("cells"), CELLS, version)


def _write_levels(group, image, version):
    axes = _AXES[-image.ndim :]
    chunks = (1,) * (image.ndim - 2) + (32, 32)
    layout = (
        {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        if version == "0.4"
        else {"shards": (*chunks[:-2], 64, 64), "dimension_names": [axis["name"] for axis in axes]}
    )
    for level in range(N_LEVELS):
        group.create_array(str(level), data=image[..., :: 2**level, :: 2**level], chunks=chunks, **layout)
    scales = [[1.0] * (image.ndim - 2) + [0.5 * 2**level] * 2 for level in range(N_LEVELS)]
    datasets = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for level, scale in enumerate(scales)
    ]
    group.attrs.update(_metadata(version, {"multiscales": [{"name": "image", "axes": axes, "datasets": datasets}]}))


def _metadata(version, document):
    if version == "0.5":
        return {"ome": {"version": version, **document}}
    return {
        key: [{"version": version, **value[0]}] if key == "multiscales" else value for key, value in document.items()
    }
