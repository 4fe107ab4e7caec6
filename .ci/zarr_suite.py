"""Run zarr-python's own tests, of the version that is installed, with this package's codec pipeline.

With ``--gpu``, those that zarr-python marks as needing a GPU, which are skipped where CuPy finds none.

The tests come with zarr-python's source distribution, which pip fetches once into the user's cache folder. What differs
on purpose is listed here, with the reason; all else has to pass.
"""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

FILES = (
    "tests/test_array.py",
    "tests/test_indexing.py",
    "tests/test_v2.py",
    "tests/test_resize.py",
    "tests/test_group.py",
    "tests/test_api.py",
    "tests/test_unified_chunk_grid.py",
    "tests/test_codecs",
)
ON_GPU = (
    "tests/test_api.py",
    "tests/test_buffer.py",
    "tests/test_config.py",
)
DIFFERS = {
    "They count calls of a store's methods by zarr-python's sharding codec": (
        "tests/test_codecs/test_sharding.py::test_sharding_multiple_chunks_partial_shard_read",
        "tests/test_codecs/test_sharding.py::test_sharding_duplicate_read_indexes",
        "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_forwards_global_config_to_get_ranges",
        "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_per_array_config_overrides_global",
        "tests/test_codecs/test_sharding_unit.py::test_load_partial_shard_uses_config_defaults",
    ),
    "They count calls of `get`, where zarr-python's quickest pipeline, which writes here, calls `get_sync`": (
        "tests/test_array.py::test_shard_write_num_gets",
    ),
    "They let the sharding codec's own reads of chunks fail, which are not made": (
        "tests/test_codecs/test_sharding.py::test_sharding_partial_shard_read__index_chunk_slice_fails",
        "tests/test_codecs/test_sharding.py::test_sharding_partial_shard_read__chunk_load_fails",
    ),
    "They look for zarr-python's words in an error: it is a ValueError here too, with others": (
        "tests/test_codecs/test_scale_offset.py::test_integer_decode_rejects_non_exact_division",
        "tests/test_codecs/test_scale_offset.py::test_decode_rejects_integer_overflow_on_offset_add",
    ),
}


def fetch(folder: Path) -> Path:
    """Return the folder of zarr-python's source distribution."""
    name = f"zarr-{version('zarr')}"
    if not (folder / name / "tests").is_dir():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--no-binary", "zarr", "-d", folder, name.replace("-", "==")], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return folder / name


def main() -> int:
    """Run the tests; further arguments are pytest's."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "xarray_gpuzarr"
    left_out = [f"--deselect={test}" for tests in DIFFERS.values() for test in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "-p", "chosen_tests"]
    arguments = sys.argv[1:] or FILES
    if arguments == ["--gpu"]:
        arguments = ["-m", "gpu", "-n", "0", *ON_GPU]  # no other process takes memory of the GPU
    setting = {"ZARR_CODEC_PIPELINE__PATH": "xarray_gpuzarr.CodecPipeline", "ZARR_NDBUFFER": "recycled.NDBuffer"}
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(
        [*command, "--tb=short", *left_out, *arguments],
        cwd=fetch(cache / "zarr-suite"),
        env=os.environ | setting | {"PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
