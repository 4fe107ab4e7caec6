"""Codec metadata -> `PipelineSpec`, from documents that zarr-python writes."""

import json

import numpy as np
import pytest
from helpers.effort import many
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

from xarray_gpuzarr import MetadataError
from xarray_gpuzarr.stored.codec_json import parse_codecs, parse_v2_codecs
from xarray_gpuzarr.stored.codecs import (
    AsTypeSpec,
    BloscSpec,
    BytesSpec,
    CastValueSpec,
    ChecksumSpec,
    DeltaSpec,
    FixedScaleOffsetSpec,
    GzipSpec,
    IdentitySpec,
    Lz4Spec,
    OtherSpec,
    PackBitsSpec,
    PipelineSpec,
    ScaleOffsetSpec,
    ShardingSpec,
    ShuffleSpec,
    TransposeSpec,
    ZlibSpec,
    ZstdSpec,
    encoded_nbytes,
)

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BYTES = BytesSpec(endian="little")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("entries", "pipeline"),
    [
        pytest.param([LITTLE], PipelineSpec(array_to_bytes=BYTES), id="bytes"),
        pytest.param([{"name": "bytes"}], PipelineSpec(array_to_bytes=BytesSpec(endian=None)), id="one-byte type"),
        pytest.param(["bytes"], PipelineSpec(array_to_bytes=BytesSpec(endian=None)), id="a name alone"),
        pytest.param(
            [LITTLE, {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}],
            PipelineSpec(array_to_bytes=BYTES, bytes_to_bytes=(GzipSpec(), ChecksumSpec())),
            id="several",
        ),
        pytest.param(
            [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE],
            PipelineSpec(array_to_array=(TransposeSpec(order=(1, 0)),), array_to_bytes=BYTES),
            id="transpose",
        ),
        pytest.param(
            [LITTLE, {"name": "blosc", "configuration": {"cname": "lz4", "shuffle": "shuffle", "typesize": 4}}],
            PipelineSpec(array_to_bytes=BYTES, bytes_to_bytes=(BloscSpec(cname="lz4", shuffle="shuffle", typesize=4),)),
            id="blosc",
        ),
        pytest.param(
            [LITTLE, {"name": "numcodecs.blosc", "configuration": {"cname": "zstd", "shuffle": 2}}],
            PipelineSpec(
                array_to_bytes=BYTES, bytes_to_bytes=(BloscSpec(cname="zstd", shuffle="bitshuffle", typesize=None),)
            ),
            id="numcodecs.blosc",
        ),
        pytest.param(
            [LITTLE, {"name": "numcodecs.lz4"}, {"name": "numcodecs.zlib", "configuration": {"level": 1}}],
            PipelineSpec(array_to_bytes=BYTES, bytes_to_bytes=(Lz4Spec(), ZlibSpec())),
            id="numcodecs.*",
        ),
        pytest.param(
            [LITTLE, {"name": "acme", "configuration": {"b": 1, "a": 2}}],
            PipelineSpec(
                array_to_bytes=BYTES, bytes_to_bytes=(OtherSpec(name="acme", configuration='{"a": 2, "b": 1}'),)
            ),
            id="an unknown one keeps its configuration",
        ),
        pytest.param(
            [{"name": "numcodecs.delta"}, {"name": "vlen-utf8"}, {"name": "zstd"}],
            PipelineSpec(
                array_to_array=(OtherSpec(name="numcodecs.delta", configuration="{}"),),
                array_to_bytes=OtherSpec(name="vlen-utf8", configuration="{}"),
                bytes_to_bytes=(ZstdSpec(),),
            ),
            id="an unknown serializer",
        ),
    ],
)
def test_v3_document(entries, pipeline):
    assert parse_codecs(entries) == pipeline


def test_sharding_holds_two_pipelines():
    document = ShardingCodec(
        chunk_shape=(2, 3),
        codecs=[BytesCodec(), ZstdCodec()],
        index_codecs=[BytesCodec(endian="big"), Crc32cCodec()],
        index_location="start",
    ).to_dict()

    pipeline = parse_codecs([json.loads(json.dumps(document, default=lambda codec: codec.to_dict()))])

    assert pipeline.array_to_bytes == ShardingSpec(
        chunk_shape=(2, 3),
        codecs=PipelineSpec(array_to_bytes=BYTES, bytes_to_bytes=(ZstdSpec(),)),
        index_codecs=PipelineSpec(array_to_bytes=BytesSpec(endian="big"), bytes_to_bytes=(ChecksumSpec(),)),
        index_location="start",
    )


@pytest.mark.parametrize(
    ("compressor", "filters", "order", "ndim", "pipeline"),
    [
        pytest.param(None, None, "C", 2, PipelineSpec(array_to_bytes=BYTES), id="nothing"),
        pytest.param({"id": "zstd", "level": 0}, None, "C", 2, ((), (ZstdSpec(),)), id="zstd"),
        pytest.param({"id": "lz4"}, [], "C", 2, ((), (Lz4Spec(),)), id="lz4"),
        pytest.param(
            {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "blocksize": 0},
            None,
            "C",
            2,
            ((), (BloscSpec(cname="zstd", shuffle="auto", typesize=None),)),
            id="blosc",
        ),
        pytest.param(None, None, "F", 3, ((TransposeSpec(order=(2, 1, 0)),), ()), id="order F"),
        pytest.param(None, None, "F", 1, ((), ()), id="order F of one axis"),
        pytest.param(
            {"id": "bz2", "level": 1},
            [{"id": "delta", "dtype": "<i4"}],
            "C",
            1,
            (
                (),
                (
                    DeltaSpec(decoded="<i4", encoded="<i4"),
                    OtherSpec(name="bz2", configuration='{"level": 1}'),
                ),
            ),
            id="filter and unknown compressor",
        ),
    ],
)
def test_v2_document(compressor, filters, order, ndim, pipeline):
    parsed = parse_v2_codecs(compressor=compressor, filters=filters, order=order, endian="little", ndim=ndim)

    assert parsed == as_pipeline(pipeline)


def as_pipeline(pipeline):
    """Spell out the tables' short form: (before, after) around little-endian bytes."""
    if isinstance(pipeline, PipelineSpec):
        return pipeline
    return PipelineSpec(array_to_array=pipeline[0], array_to_bytes=BYTES, bytes_to_bytes=pipeline[1])


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
    ({"id": "fixedscaleoffset", "scale": 10**400, "offset": 0, "dtype": "<f4", "astype": "<i2"}, "refused"),
    ({"id": "fixedscaleoffset", "scale": True, "offset": 0, "dtype": "<f4", "astype": "<i2"}, None),
    ({"id": "delta"}, "refused"),
    ({"id": "delta", "dtype": "nonsense"}, "refused"),
    ({"id": "shuffle", "elementsize": "many"}, "refused"),
    ({"id": "zstd", "level": 1}, ZstdSpec()),
]


@pytest.mark.parametrize(("conf", "spec"), NUMCODECS, ids=lambda v: json.dumps(v) if isinstance(v, dict) else "")
@pytest.mark.parametrize("role", ["compressor", "filter"])
def test_codec_of_numcodecs(role, conf, spec):
    named = {"compressor": conf, "filters": None} if role == "compressor" else {"compressor": None, "filters": [conf]}
    if spec == "refused":
        with pytest.raises(MetadataError):
            parse_v2_codecs(**named, order="C", endian="little", ndim=1)
        return

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
    ("f4", [core("cast_value", data_type="int4")], None),
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


def test_last_codec_of_elements_encodes_in_the_byte_order_of_the_bytes():
    chain = [
        numcodec("delta", dtype="<i4"),
        numcodec("astype", encode_dtype="<i8"),
        numcodec("astype", encode_dtype="<i8"),
    ]

    pipeline = parse_codecs([*chain, core("bytes", endian="big")], np.dtype("i4"))

    assert pipeline.stages == (AsTypeSpec(decoded="<i4", encoded=">i8"), DeltaSpec(decoded="<i4", encoded="<i4"))


def test_elementsize_of_shuffle_is_that_of_what_is_stored():
    chain = [numcodec("astype", encode_dtype="<i8"), LITTLE, numcodec("shuffle")]

    assert parse_codecs(chain, np.dtype("i4")).bytes_to_bytes == (ShuffleSpec(elementsize=8),)


def test_codecs_of_elements_need_the_dtype_of_the_array():
    chain = [numcodec("delta", dtype="<i4"), LITTLE, numcodec("shuffle", elementsize=4)]

    assert [type(spec) for spec in parse_codecs(chain)] == [OtherSpec, BytesSpec, OtherSpec]


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


def test_pipeline_reads_like_the_way_it_encodes():
    pipeline = PipelineSpec(
        array_to_array=(TransposeSpec(order=(1, 0)),),
        array_to_bytes=BYTES,
        bytes_to_bytes=(BloscSpec(cname="lz4", shuffle="shuffle", typesize=4), ChecksumSpec()),
    )

    assert str(pipeline) == "transpose(1,0) > bytes(little) > blosc(cname=lz4, shuffle=shuffle) > crc32c"
