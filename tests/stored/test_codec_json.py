"""Codec metadata -> `PipelineSpec`, from documents that zarr-python writes."""

import json

import numpy as np
import pytest
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr import MetadataError
from xarray_gpuzarr.stored.codec_json import parse_codecs, parse_v2_codecs
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesSpec,
    ChecksumSpec,
    IdentitySpec,
    OtherSpec,
    PipelineSpec,
    ShuffleSpec,
    TransposeSpec,
    ZstdSpec,
    encoded_nbytes,
)
from xarray_gpuzarr.stored.element_codecs import (
    AsTypeSpec,
    CastValueSpec,
    DeltaSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
    ScaleOffsetSpec,
)

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


NUMCODECS = [
    ({"id": "shuffle"}, ShuffleSpec(elementsize=4)),
    ({"id": "shuffle", "elementsize": 8}, ShuffleSpec(elementsize=8)),
    ({"id": "shuffle", "elementsize": 1}, IdentitySpec(name="shuffle")),
    ({"id": "crc32"}, ChecksumSpec(algorithm="crc32", at_start=True)),
    ({"id": "crc32", "location": "end"}, ChecksumSpec(algorithm="crc32")),
    ({"id": "adler32"}, ChecksumSpec(algorithm="adler32", at_start=True)),
    ({"id": "crc32c"}, ChecksumSpec()),
    ({"id": "crc32c", "location": "start"}, ChecksumSpec(at_start=True)),
    ({"id": "fletcher32"}, ChecksumSpec(algorithm="fletcher32")),
    ({"id": "jenkins_lookup3", "initval": 3, "prefix": None}, ChecksumSpec(algorithm="jenkins_lookup3", seed=3)),
    ({"id": "jenkins_lookup3", "prefix": [1]}, None),
    ({"id": "delta", "dtype": "i4"}, DeltaSpec(decoded="<i4", encoded="<i4")),
    ({"id": "delta", "dtype": ">i4", "astype": "int8"}, DeltaSpec(decoded=">i4", encoded="|i1")),
    ({"id": "delta", "dtype": "<M8[ns]"}, None),
    ({"id": "delta", "dtype": "|O"}, None),
    ({"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f8"}, AsTypeSpec(decoded="<f8", encoded="<f4")),
    ({"id": "astype", "encode_dtype": "<f4", "decode_dtype": "f4"}, IdentitySpec(name="astype")),
    ({"id": "astype", "encode_dtype": "<c8", "decode_dtype": "<f4"}, None),
    ({"id": "quantize", "digits": 2, "dtype": "<f4"}, IdentitySpec(name="quantize")),
    (
        {"id": "quantize", "digits": 2, "dtype": "<f8", "astype": "<f4"},
        AsTypeSpec(name="quantize", decoded="<f8", encoded="<f4"),
    ),
    ({"id": "bitround", "keepbits": 3}, IdentitySpec(name="bitround")),
    ({"id": "packbits"}, PackBitsSpec(decoded="|b1", encoded="|u1")),
    (
        {"id": "fixedscaleoffset", "scale": 10, "offset": 0.5, "dtype": "<f4", "astype": "<i2"},
        FixedScaleOffsetSpec(decoded="<f4", encoded="<i2", scale=10, offset=0.5),
    ),
    ({"id": "fixedscaleoffset", "scale": 10**400, "offset": 0, "dtype": "<f4", "astype": "<i2"}, None),
    ({"id": "fixedscaleoffset", "scale": True, "offset": 0, "dtype": "<f4", "astype": "<i2"}, None),
    ({"id": "delta"}, None),
    ({"id": "delta", "dtype": "nonsense"}, None),
    ({"id": "shuffle", "elementsize": "many"}, None),
    ({"id": "zstd", "level": 1}, ZstdSpec()),
]


@pytest.mark.parametrize(("conf", "spec"), NUMCODECS, ids=lambda v: json.dumps(v) if isinstance(v, dict) else "")
@pytest.mark.parametrize("role", ["compressor", "filter"])
def test_codec_of_numcodecs(role, conf, spec):
    named = {"compressor": conf, "filters": None} if role == "compressor" else {"compressor": None, "filters": [conf]}
    (found,) = parse_v2_codecs(**named, order="C", endian="little", ndim=1).bytes_to_bytes

    configuration = json.dumps({k: v for k, v in conf.items() if k != "id"}, sort_keys=True)
    assert found == (spec or OtherSpec(name=conf["id"], configuration=configuration))


def numcodec(codec_id, **configuration):
    return {"name": f"numcodecs.{codec_id}", "configuration": configuration}


def core(name, **configuration):
    return {"name": name, "configuration": configuration}


SWAPPED = core("transpose", order=[1, 0])
FIXED = {"scale": 2, "offset": 1}
ARRAY_CODECS = [
    ("i4", [numcodec("delta", dtype="int32")], [DeltaSpec(decoded="<i4", encoded="<i4")]),
    ("i4", [numcodec("delta", dtype="<i4", astype="<i2")], [DeltaSpec(decoded="<i4", encoded="<i2")]),
    ("i4", [numcodec("delta", dtype="<i2")], None),
    ("i4", [numcodec("delta", dtype=">i4")], None),
    ("i4", [numcodec("delta", dtype="<i4", astype=">i2")], None),
    ("i4", [numcodec("delta", dtype="<i4"), SWAPPED], None),
    ("i4", [SWAPPED, numcodec("delta", dtype="<i4")], [SWAPPED, DeltaSpec(decoded="<i4", encoded="<i4")]),
    ("f4", [numcodec("astype", encode_dtype="<f8"), SWAPPED], [AsTypeSpec(decoded="<f4", encoded="<f8"), SWAPPED]),
    (
        "f4",
        [numcodec("fixedscaleoffset", **FIXED, astype="<u2"), numcodec("delta", dtype="<u2")],
        [
            FixedScaleOffsetSpec(decoded="<f4", encoded="<u2", **FIXED),
            DeltaSpec(decoded="<u2", encoded="<u2"),
        ],
    ),
    ("f4", [numcodec("fixedscaleoffset", **FIXED, astype="<u2"), numcodec("delta", dtype="<f4")], None),
    ("f4", [numcodec("quantize", digits=2)], [IdentitySpec(name="quantize")]),
    ("f8", [numcodec("quantize", digits=2, dtype="<f8", astype="<f4")], None),
    ("f4", [numcodec("bitround", keepbits=2)], [IdentitySpec(name="bitround")]),
    ("i4", [numcodec("bitround", keepbits=2)], None),
    ("f8", [numcodec("quantize", digits=2, dtype="<f4")], None),
    ("f8", [numcodec("astype", encode_dtype="<f4", decode_dtype="<f4")], None),
    ("?", [numcodec("packbits")], [PackBitsSpec(decoded="|b1", encoded="|u1")]),
    ("i4", [numcodec("packbits")], None),
    ("i4", ["scale_offset"], [ScaleOffsetSpec(decoded="<i4", encoded="<i4", scale=1, offset=0)]),
    (
        "f4",
        [core("scale_offset", scale=0.1, offset=-2)],
        [ScaleOffsetSpec(decoded="<f4", encoded="<f4", scale=float(np.float32(0.1)), offset=-2.0)],
    ),
    ("i2", [core("scale_offset", offset=3.0)], [ScaleOffsetSpec(decoded="<i2", encoded="<i2", scale=1, offset=3)]),
    ("i2", [core("scale_offset", offset=3.5)], None),
    ("i2", [core("scale_offset", scale=0)], None),
    ("i2", [core("scale_offset", scale="2")], None),
    ("f4", [core("scale_offset", offset="0x3f800000")], None),
    ("c8", [core("scale_offset", scale=2)], None),
    (
        "f4",
        [core("cast_value", data_type="int16", scalar_map={"decode": [["-9", "NaN"], [3, 1]]}, out_of_range="clamp")],
        [
            CastValueSpec(
                decoded="<f4",
                encoded="<i2",
                rounding="nearest-even",
                out_of_range="clamp",
                scalar_map=(("-9", "NaN"), ("3", "1")),
            )
        ],
    ),
    ("f4", [core("cast_value", data_type="complex64")], None),
    ("f4", [core("cast_value", data_type="int3_of_an_extension")], None),
    ("i4", [numcodec("acme"), numcodec("delta", dtype="<i4")], None),
]


@pytest.mark.parametrize(("dtype", "entries", "specs"), ARRAY_CODECS)
def test_codec_of_elements(dtype, entries, specs):
    pipeline = parse_codecs([*entries, LITTLE], np.dtype(dtype))

    if specs is None:
        assert isinstance(pipeline.other, OtherSpec)
    else:
        assert pipeline.array_to_array == tuple(TransposeSpec(order=(1, 0)) if s is SWAPPED else s for s in specs)
        assert pipeline.stages == tuple(s for s in reversed(specs) if s is not SWAPPED and type(s) is not IdentitySpec)


@pytest.mark.parametrize(
    ("entries", "pipeline"),
    [
        (
            [LITTLE, core("blosc", cname="lz4", shuffle="shuffle", typesize=4), core("acme", b=1, a=2)],
            PipelineSpec(
                array_to_bytes=BytesSpec(endian="little"),
                bytes_to_bytes=(
                    BloscSpec(cname="lz4", shuffle="shuffle", typesize=4),
                    OtherSpec(name="acme", configuration='{"a": 2, "b": 1}'),
                ),
            ),
        ),
        (
            [numcodec("delta"), "vlen-utf8", "zstd"],
            PipelineSpec(
                array_to_array=(OtherSpec(name="numcodecs.delta", configuration="{}"),),
                array_to_bytes=OtherSpec(name="vlen-utf8", configuration="{}"),
                bytes_to_bytes=(ZstdSpec(),),
            ),
        ),
    ],
    ids=["unknown codec", "unknown serializer"],
)
def test_what_is_not_known_is_kept_as_it_is(entries, pipeline):
    assert parse_codecs(entries) == pipeline


@pytest.mark.parametrize(
    ("spec", "nbytes", "encoded"),
    [
        (ChecksumSpec(), 10, 14),
        (ShuffleSpec(elementsize=4), 12, 12),
        (ShuffleSpec(elementsize=4), 13, None),
        (DeltaSpec(decoded="<i4", encoded="|i1"), 12, 3),
        (DeltaSpec(decoded="<i4", encoded="|i1"), 13, None),
        (AsTypeSpec(decoded="<f4", encoded="<f8"), 12, 24),
        (PackBitsSpec(decoded="|b1", encoded="|u1"), 16, 3),
        (PackBitsSpec(decoded="|b1", encoded="|u1"), 17, 4),
        (ZstdSpec(), 10, None),
    ],
)
def test_encoded_length(spec, nbytes, encoded):
    assert encoded_nbytes(spec, nbytes) == encoded


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="empty"),
        pytest.param([{"name": "zstd"}], id="no serializer"),
        pytest.param([{"configuration": {}}], id="no name"),
        pytest.param([{"name": 3}], id="name is a number"),
        pytest.param([7], id="not an object"),
        pytest.param([None], id="null"),
        pytest.param([{"name": "transpose"}, LITTLE], id="transpose without order"),
        pytest.param([{"name": "transpose", "configuration": {"order": ["a"]}}, LITTLE], id="order is text"),
        pytest.param([LITTLE, {"name": "blosc", "configuration": {}}], id="blosc without cname"),
        pytest.param([{"name": "sharding_indexed", "configuration": {}}], id="sharding without shape"),
        pytest.param(
            [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [], "index_codecs": []}}],
            id="sharding without codecs",
        ),
        pytest.param([{"name": "bytes", "configuration": [1]}], id="configuration is a list"),
        pytest.param([LITTLE, {"name": "blosc", "configuration": "lz4"}], id="configuration is text"),
    ],
)
def test_malformed_v3_document_is_refused(entries):
    with pytest.raises(MetadataError) as caught:
        parse_codecs(entries)

    assert "zarr.json" in caught.value.do


@pytest.mark.parametrize(
    ("compressor", "filters"),
    [({}, None), ({"id": 3}, None), (None, [{}]), (None, ["delta"]), ("zstd", None), ([], None)],
)
def test_malformed_v2_document_is_refused(compressor, filters):
    with pytest.raises(MetadataError):
        parse_v2_codecs(compressor=compressor, filters=filters, order="C", endian=None, ndim=1)


CORE_NAMES = [
    *("bytes", "transpose", "zstd", "gzip", "zlib", "lz4", "blosc", "crc32c"),
    *("sharding_indexed", "scale_offset", "cast_value", "x"),
]
CORE_KEYS = [
    *("endian", "order", "cname", "typesize", "chunk_shape", "codecs", "index_codecs", "index_location"),
    *("data_type", "scalar_map"),
]
known_names = st.sampled_from([*CORE_NAMES, *(f"numcodecs.{conf['id']}" for conf, _ in NUMCODECS)])
known_keys = st.sampled_from(sorted({*CORE_KEYS, *(key for conf, _ in NUMCODECS for key in conf)}))
codec_entries = st.fixed_dictionaries(
    {"name": known_names},
    optional={"configuration": st.dictionaries(known_keys, json_values, max_size=4) | json_values},
)


@many
@given(st.lists(codec_entries | json_values, max_size=4), st.sampled_from([None, *map(np.dtype, ("i4", "f8", "?"))]))
def test_any_json_is_a_pipeline_or_a_metadata_error(entries, dtype):
    try:
        pipeline = parse_codecs(entries, dtype)
    except MetadataError:
        return
    assert isinstance(pipeline, PipelineSpec)
