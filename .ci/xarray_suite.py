"""Run xarray's own tests of its zarr engine, of the version that is installed, twice.

Once with this package's codec pipeline below xarray's engine, once with this package's engine in its place. The tests
come with xarray. Some fail without this package too, since xarray's newest release is not always made for zarr-python's
newest: so what fails here is run once more without it, and only what passes there is a failure.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import xarray

TESTS = ("xarray/tests/test_backends.py", "xarray/tests/test_backends_datatree.py")
STOCK = {"ZARR_CODEC_PIPELINE__PATH": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
PIPELINE = {"ZARR_CODEC_PIPELINE__PATH": "xarray_gpuzarr.CodecPipeline", "ZARR_NDBUFFER": "recycled.NDBuffer"}
QUICKEST = {"ZARR_CODEC_PIPELINE__PATH": "zarr.core.codec_pipeline.FusedCodecPipeline"}
ENGINE = QUICKEST | {"PYTEST_PLUGINS": "engine_gpuzarr"}
"""It reads without a pipeline; what the tests write is written soonest by that one."""
OTHERWISE = {
    "test_indexing": "looks whether zarr's own asynchronous methods were called",
    "test_async_load": "likewise",
    "test_concurrent_load": "likewise",
    "test_zarr_fill_value_setting": "xarray's engine takes no notice of use_zarr_fill_value_as_mask",
    "test_chunking_consistency": "tasks are made of whole shards",
}
"""What this package's engine does otherwise on purpose."""
REPEATED = "TestZarrWriteEmpty"
"""That class repeats the tests of files on disk."""
NOT_BY_PIPELINE = {
    "NOT_NAMED": "TestZarrNoConsolidatedMetadataSupport",  # is opened otherwise, and then read as others are
    "NOT_INHERITED_BY": f"{REPEATED} TestZarrDirectoryStore",  # zarr-python's own suite has a pipeline read files
}
NOT_BY_ENGINE = {"NOT_NAMED": " ".join(OTHERWISE), "NOT_INHERITED_BY": REPEATED}
MOST = 60
"""Tests that may fail under both; more than that, and they test nothing."""
LEAST, LEAST_BY_PIPELINE = 700, 400
"""Tests that have to pass: fewer, and they were not found."""


def failures(setting: dict[str, str], cache: Path, least: int, *arguments: str) -> set[str]:
    """Run tests under a setting; return what failed. Raise if they could not be run, or were too few."""
    folder, report = Path(xarray.__file__).parents[1], cache / "report.xml"
    paths = filter(None, [os.environ.get("PYTHONPATH")])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--disable-warnings", f"--junitxml={report}"]
    command += ["-p", "chosen_tests"]
    own = ["-c", os.devnull, f"--rootdir={folder}", "-o", f"cache_dir={cache}"]  # not this project's settings
    run = subprocess.run(
        [*command, *own, *arguments, *TESTS],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *paths])} | setting,
        check=False,
    )
    if run.returncode not in (0, 1):
        raise SystemExit(run.returncode)
    suite = ET.parse(report).getroot()[0]  # noqa: S314  # our own
    n_passed = int(suite.get("tests")) - sum(int(suite.get(kind)) for kind in ("errors", "failures", "skipped"))
    if int(suite.get("errors")) or n_passed < least:
        raise SystemExit(f"{suite.get('errors')} errors, and {n_passed} tests passed where {least} were expected")
    noted = cache / "v/cache/lastfailed"
    return set(json.loads(noted.read_text())) if run.returncode else set()


def main() -> int:
    """Run the tests; further arguments are pytest's."""
    status, stock = 0, set()
    for name, setting, left_out, least in (
        ("this package's pipeline", PIPELINE, NOT_BY_PIPELINE, LEAST_BY_PIPELINE),
        ("this package's engine", ENGINE, NOT_BY_ENGINE, LEAST),
    ):
        with tempfile.TemporaryDirectory() as folder:
            cache, arguments = Path(folder), sys.argv[1:]
            chosen = {} if arguments else {"ONLY_NAMED": "zarr"} | left_out
            failed = failures(setting | chosen, cache, 1 if arguments else least, "--tb=short", *arguments)
            if failed - stock:
                every = {"XARRAY_GPUZARR_TEST_COMBINATIONS": "all"}
                stock |= failures(STOCK | every, cache, 0, "--tb=no", "--last-failed", *arguments)
        print(f"{len(failed & stock)} of them fail without this package too.")
        print(*(f"Only under {name}: {test}" for test in sorted(failed - stock)), sep="\n")
        status |= bool(failed - stock)
    return status | (len(stock) > MOST)


if __name__ == "__main__":
    sys.exit(main())
