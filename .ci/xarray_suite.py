"""Run xarray's own tests of its zarr engine, of the version that is installed, with this package's codec pipeline.

The tests come with xarray. Some fail under zarr-python's own pipeline too, since xarray's newest release is not always
made for zarr-python's newest: so what fails here is run once more under that one, and only what passes there is a
failure.
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
SETTINGS = {
    "ours": {"ZARR_CODEC_PIPELINE__PATH": "xarray_gpuzarr.CodecPipeline", "ZARR_NDBUFFER": "recycled.NDBuffer"},
    "zarr-python's": {"ZARR_CODEC_PIPELINE__PATH": "zarr.core.codec_pipeline.BatchedCodecPipeline"},
}
MOST = 60
"""Tests that may fail under both; more than that, and they test nothing."""
LEAST = 1000
"""Tests that have to pass: fewer, and they were not found."""


def failures(pipeline: str, cache: Path, least: int, *arguments: str) -> set[str]:
    """Run tests with a pipeline; return what failed. Raise if they could not be run, or were too few."""
    folder, report = Path(xarray.__file__).parents[1], cache / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--disable-warnings", f"--junitxml={report}"]
    own = ["-c", os.devnull, f"--rootdir={folder}", "-o", f"cache_dir={cache}"]  # not this project's settings
    run = subprocess.run(
        [*command, *own, *arguments, *TESTS],
        cwd=folder,
        env=os.environ | SETTINGS[pipeline],
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
    arguments = sys.argv[1:] or ["-k", "zarr"]  # in any case of letters
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        failed = failures("ours", cache, 1 if sys.argv[1:] else LEAST, "--tb=short", *arguments)
        if not failed:
            return 0
        both = failures("zarr-python's", cache, 0, "--tb=no", "--last-failed", *arguments)
    print(f"{len(both)} of them fail under zarr-python's own pipeline too.")
    ours = sorted(failed - both)
    print(*(f"Only under this package's: {test}" for test in ours), sep="\n")
    return int(bool(ours) or len(both) > MOST)


if __name__ == "__main__":
    sys.exit(main())
