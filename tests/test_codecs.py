"""Codec metadata -> `CodecPipeline`, from documents that zarr-python writes."""

import json

import numpy as np
import pytest
from helpers.corpus import V2_CODECS, V2_CODECS_BY_ZARR, V3_CODECS, V3_CODECS_BY_ZARR, write
from helpers.effort import many
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

from xarray_gpuzarr import MetadataError
from xarray_gpuzarr.codecs import (
    BloscSpec,
    BytesSpec,
    CodecPipeline,
    Crc32cSpec,
    GzipSpec,
    Lz4Spec,
    OtherSpec,
    ShardingSpec,
    TransposeSpec,
    ZlibSpec,
    ZstdSpec,
    parse_codecs,
    parse_v2_codecs,
)

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BYTES = BytesSpec(endian="little")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_names = st.sampled_from(
    ["bytes", "transpose", "zstd", "gzip", "zlib", "lz4", "blosc", "crc32c", "sharding_indexed", "numcodecs.blosc", "x"]
)
known_keys = st.sampled_from(
    ["endian", "order", "cname", "shuffle", "typesize", "chunk_shape", "codecs", "index_codecs", "index_location"]
)
codec_entries = st.fixed_dictionaries(
    {"name": known_names},
    optional={"configuration": st.dictionaries(known_keys, json_values, max_size=4) | json_values},
)


@pytest.mark.parametrize(
    ("entries", "pipeline"),
    [
        pytest.param([LITTLE], CodecPipeline(array_to_bytes=BYTES), id="bytes"),
        pytest.param([{"name": "bytes"}], CodecPipeline(array_to_bytes=BytesSpec(endian=None)), id="one-byte type"),
        pytest.param(["bytes"], CodecPipeline(array_to_bytes=BytesSpec(endian=None)), id="a name alone"),
        pytest.param(
            [LITTLE, {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}],
            CodecPipeline(array_to_bytes=BYTES, bytes_to_bytes=(GzipSpec(), Crc32cSpec())),
            id="several",
        ),
        pytest.param(
            [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE],
            CodecPipeline(array_to_array=(TransposeSpec(order=(1, 0)),), array_to_bytes=BYTES),
            id="transpose",
        ),
        pytest.param(
            [LITTLE, {"name": "blosc", "configuration": {"cname": "lz4", "shuffle": "shuffle", "typesize": 4}}],
            CodecPipeline(
                array_to_bytes=BYTES, bytes_to_bytes=(BloscSpec(cname="lz4", shuffle="shuffle", typesize=4),)
            ),
            id="blosc",
        ),
        pytest.param(
            [LITTLE, {"name": "numcodecs.blosc", "configuration": {"cname": "zstd", "shuffle": 2}}],
            CodecPipeline(
                array_to_bytes=BYTES, bytes_to_bytes=(BloscSpec(cname="zstd", shuffle="bitshuffle", typesize=None),)
            ),
            id="numcodecs.blosc",
        ),
        pytest.param(
            [LITTLE, {"name": "numcodecs.lz4"}, {"name": "numcodecs.zlib", "configuration": {"level": 1}}],
            CodecPipeline(array_to_bytes=BYTES, bytes_to_bytes=(Lz4Spec(), ZlibSpec())),
            id="numcodecs.*",
        ),
        pytest.param(
            [LITTLE, {"name": "acme", "configuration": {"b": 1, "a": 2}}],
            CodecPipeline(
                array_to_bytes=BYTES, bytes_to_bytes=(OtherSpec(name="acme", configuration='{"a": 2, "b": 1}'),)
            ),
            id="an unknown one keeps its configuration",
        ),
        pytest.param(
            [{"name": "numcodecs.delta"}, {"name": "vlen-utf8"}, {"name": "zstd"}],
            CodecPipeline(
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
        codecs=CodecPipeline(array_to_bytes=BYTES, bytes_to_bytes=(ZstdSpec(),)),
        index_codecs=CodecPipeline(array_to_bytes=BytesSpec(endian="big"), bytes_to_bytes=(Crc32cSpec(),)),
        index_location="start",
    )


@pytest.mark.parametrize(
    ("compressor", "filters", "order", "ndim", "pipeline"),
    [
        pytest.param(None, None, "C", 2, CodecPipeline(array_to_bytes=BYTES), id="nothing"),
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
                    OtherSpec(name="delta", configuration='{"dtype": "<i4"}'),
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
    if isinstance(pipeline, CodecPipeline):
        return pipeline
    return CodecPipeline(array_to_array=pipeline[0], array_to_bytes=BYTES, bytes_to_bytes=pipeline[1])


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


@many
@given(st.lists(codec_entries | json_values, max_size=4))
def test_any_json_is_a_pipeline_or_a_metadata_error(entries):
    try:
        pipeline = parse_codecs(entries)
    except MetadataError:
        return
    assert isinstance(pipeline, CodecPipeline)


@pytest.mark.parametrize("codecs", [*V3_CODECS.values()], ids=[*V3_CODECS])
def test_bulk_codecs_of_v3_need_no_other(memory, codecs):
    array = write(memory, np.ones((4, 6), "i4"), chunks=(2, 3), **codecs)

    assert parse_codecs(array.metadata.to_dict()["codecs"]).other is None


@pytest.mark.parametrize("codecs", [*V3_CODECS_BY_ZARR.values()], ids=[*V3_CODECS_BY_ZARR])
def test_other_codecs_of_v3_are_left_to_zarr(memory, codecs):
    array = write(memory, np.ones((4, 6), "i4"), chunks=(2, 3), **codecs)

    assert isinstance(parse_codecs(array.metadata.to_dict()["codecs"]).other, OtherSpec)


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [(c, False) for c in V2_CODECS.values()] + [(c, True) for c in V2_CODECS_BY_ZARR.values()],
    ids=[*V2_CODECS, *(f"by zarr: {name}" for name in V2_CODECS_BY_ZARR)],
)
def test_only_unknown_codecs_of_v2_are_left_to_zarr(memory, codecs, expected):
    document = write(memory, np.ones((4, 6), "i4"), chunks=(2, 3), zarr_format=2, **codecs).metadata.to_dict()

    pipeline = parse_v2_codecs(
        compressor=document["compressor"], filters=document["filters"], order="C", endian="little", ndim=2
    )

    assert (pipeline.other is not None) == expected


def test_pipeline_reads_like_the_way_it_encodes():
    pipeline = CodecPipeline(
        array_to_array=(TransposeSpec(order=(1, 0)),),
        array_to_bytes=BYTES,
        bytes_to_bytes=(BloscSpec(cname="lz4", shuffle="shuffle", typesize=4), Crc32cSpec()),
    )

    assert str(pipeline) == "transpose(1,0) > bytes(little) > blosc(cname=lz4, shuffle=shuffle) > crc32c"
