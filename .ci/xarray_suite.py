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
ENGINE = STOCK | {"PYTEST_PLUGINS": "engine_gpuzarr", "PYTHONPATH": str(Path(__file__).parent)}
OTHERWISE = {
    "test_indexing": "looks whether zarr's own asynchronous methods were called",
    "test_async_load": "likewise",
    "test_concurrent_load": "likewise",
    "test_zarr_fill_value_setting": "xarray's engine takes no notice of use_zarr_fill_value_as_mask",
    "test_chunking_consistency": "tasks are made of whole shards",
}
"""What this package's engine does otherwise on purpose."""
MOST = 60
"""Tests that may fail under both; more than that, and they test nothing."""
LEAST = 1000
"""Tests that have to pass: fewer, and they were not found."""


def failures(setting: dict[str, str], cache: Path, least: int, *arguments: str) -> set[str]:
    """Run tests under a setting; return what failed. Raise if they could not be run, or were too few."""
    folder, report = Path(xarray.__file__).parents[1], cache / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--disable-warnings", f"--junitxml={report}"]
    own = ["-c", os.devnull, f"--rootdir={folder}", "-o", f"cache_dir={cache}"]  # not this project's settings
    run = subprocess.run(
        [*command, *own, *arguments, *TESTS],
        cwd=folder,
        env=os.environ | setting,
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
    for name, setting, chosen in (
        ("this package's pipeline", PIPELINE, "zarr"),  # in any case of letters
        ("this package's engine", ENGINE, f"zarr and not ({' or '.join(OTHERWISE)})"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            arguments = sys.argv[1:] or ["-k", chosen]
            failed = failures(setting, cache, 1 if sys.argv[1:] else LEAST, "--tb=short", *arguments)
            if failed - stock:
                stock |= failures(STOCK, cache, 0, "--tb=no", "--last-failed", *arguments)
        print(f"{len(failed & stock)} of them fail without this package too.")
        print(*(f"Only under {name}: {test}" for test in sorted(failed - stock)), sep="\n")
        status |= bool(failed - stock)
    return status | (len(stock) > MOST)


if __name__ == "__main__":
    sys.exit(main())
