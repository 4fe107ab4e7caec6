"""Forks while other threads read: the child's first read works, or says at once what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.every_pair import usually

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

TESTS = Path(__file__).parents[1]


def test_a_process_that_was_forked_off_reads_or_says_what_to_do():
    forks = {"files": 12, "store": 12, "zip": 4, "cuda": 4, "progress": 20}
    words = [f"{kind}={usually(max(2, n // 5), full=n)}" for kind, n in forks.items()]
    command = [sys.executable, "-W", "ignore", "-m", "helpers.forked_reads", *words]

    done = subprocess.run(
        command, capture_output=True, text=True, timeout=usually(100, full=280), check=False, cwd=TESTS
    )

    assert (done.returncode, done.stderr) == (0, "")
