"""Programs that some tests need: without them those are skipped, except where everything is to run."""

import os

import pytest

FULL = os.environ.get("LAYERMARK_TEST_FULL") == "1"


def need(there, what, *, full=FULL):
    """Skip the test where what it needs is not there; where everything is to run, that is a failure."""
    if not there:
        (pytest.fail if full else pytest.skip)(f"needs {what}")
