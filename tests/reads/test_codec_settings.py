"""Odd settings of codecs: what zarr-python reads, writes or refuses with them is read, written or refused here."""

import json

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import numcodecs as codecs_of_numcodecs

from xarray_gpuzarr import zarr_pipeline

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs", "ignore:.*Zarr format 3")

DATA = np.arange(24).reshape(4, 6)
ODD = [None, [0], "", "1", -1, 0, 100, 2**70, 1.5, "<f8", "missing"]
CODECS = [
    ("i4", {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 1, "blocksize": 0, "typesize": 4}),
    ("i4", {"id": "zstd", "level": 1, "checksum": False}),
    ("i4", {"id": "gzip", "level": 1}),
    ("i4", {"id": "zlib", "level": 1}),
    ("i4", {"id": "lz4", "acceleration": 1}),
    ("i4", {"id": "shuffle", "elementsize": 4}),
    ("i4", {"id": "crc32", "location": "start"}),
    ("i4", {"id": "adler32", "location": "start"}),
    ("i4", {"id": "crc32c", "location": "end"}),
    ("i4", {"id": "fletcher32"}),
    ("i4", {"id": "jenkins_lookup3", "initval": 0, "prefix": None}),
    ("i4", {"id": "delta", "dtype": "<i4", "astype": "<i4"}),
    ("f4", {"id": "fixedscaleoffset", "scale": 2, "offset": 1, "dtype": "<f4", "astype": "<i2"}),
    ("f4", {"id": "quantize", "digits": 2, "dtype": "<f4", "astype": "<f4"}),
    ("f4", {"id": "bitround", "keepbits": 3}),
    ("f4", {"id": "astype", "encode_dtype": "<f8", "decode_dtype": "<f4"}),
    ("?", {"id": "packbits"}),
]
OF_ELEMENTS = {"delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"}
_NAMES = (
    "Blosc Zstd GZip Zlib LZ4 Shuffle CRC32 Adler32 CRC32C Fletcher32 Delta FixedScaleOffset Quantize BitRound AsType"
)
CLASSES = {
    "jenkins_lookup3": codecs_of_numcodecs.JenkinsLookup3,
    "packbits": codecs_of_numcodecs.PackBits,
    **{name.lower(): getattr(codecs_of_numcodecs, name) for name in _NAMES.split()},
}
"""Classes of zarr-python for format 3."""


def write(path, zarr_format, dtype, codec):
    """Write a plain variable and one with a codec; return the document of the latter and where it names the codec."""
    group = zarr.create_group(path, zarr_format=zarr_format)
    settings = {name: value for name, value in codec.items() if name != "id"}
    built = numcodecs.get_codec(dict(codec)) if zarr_format == 2 else CLASSES[codec["id"]](**settings)
    role = "filters" if codec["id"] in OF_ELEMENTS else "compressors"
    keywords = {"filters": None, "compressors": None} | {role: [built]}
    names = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}} if zarr_format == 2 else {"dimension_names": ["y", "x"]}
    for name, of_codec in (("plain", {}), ("odd", keywords)):
        array = group.create_array(name, shape=DATA.shape, chunks=(2, 6), dtype=dtype, **names, **of_codec)
        array[...] = DATA.astype(dtype)
    document = path / "odd" / (".zarray" if zarr_format == 2 else "zarr.json")
    return document, json.loads(document.read_text())


def changed(document, codec_id, setting, value):
    """Return a document with another value of a setting, or none."""
    document = json.loads(json.dumps(document))
    if document["zarr_format"] == 2:
        (settings,) = [conf for conf in [*(document["filters"] or ()), document["compressor"]] if conf]
    else:
        (settings,) = [c["configuration"] for c in document["codecs"] if c["name"] == f"numcodecs.{codec_id}"]
    settings[setting] = value
    if value == "missing":
        del settings[setting]
    return json.dumps(document)


def outcome(read):
    """Return the values that a read gives, or that it is refused."""
    try:
        return np.asarray(read()).tobytes()
    except Exception as err:  # noqa: BLE001  # of whatever kind zarr-python's is
        return "refused" if str(err) else "refused without a word"


def variables(path, engine, **keywords):
    """Return the outcome for each variable of a store, or that the store is refused."""
    try:
        opened = xr.open_dataset(path, engine=engine, consolidated=False, **keywords)
    except Exception as err:  # noqa: BLE001  # likewise
        return "refused" if str(err) else "refused without a word"
    return {name: outcome(variable.load) for name, variable in opened.items()}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("dtype", "codec"), CODECS, ids=[codec["id"] for _, codec in CODECS])
def test_odd_settings_are_read_or_refused_as_by_zarr_python(tmp_path, zarr_format, dtype, codec):
    path, document = write(tmp_path, zarr_format, dtype, codec)
    for setting in [*list(codec)[1:], "unknown"]:
        for value in ODD if setting != "unknown" else [0]:
            path.write_text(changed(document, codec["id"], setting, value))

            found = variables(tmp_path, "gpuzarr", device="host")
            assert found == variables(tmp_path, "zarr"), (setting, value)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("codec", "setting", "value"),
    [
        (CODECS[0][1], "clevel", "1"),
        (CODECS[0][1], "shuffle", [0]),
        (CODECS[0][1], "blocksize", 2**31),
        (CODECS[1][1], "level", "1"),
        (CODECS[1][1], "level", 2**31),
        (CODECS[2][1], "level", 1.5),
        (CODECS[4][1], "acceleration", "1"),
    ],
    ids=str,
)
def test_odd_settings_of_an_encoder_are_refused_by_zarr_python(tmp_path, zarr_format, codec, setting, value):
    path, document = write(tmp_path, zarr_format, "i4", codec)
    path.write_text(changed(document, codec["id"], setting, value))
    refusals = []

    for context in (zarr.config.set({}), zarr_pipeline()):
        with context, pytest.raises((TypeError, ValueError, OverflowError, RuntimeError)) as refused:
            zarr.open_group(tmp_path, mode="r+")["odd"][...] = DATA[::-1]
        refusals.append((refused.type, str(refused.value)))

    assert refusals[0] == refusals[1]
