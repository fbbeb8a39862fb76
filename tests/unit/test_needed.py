"""What is not installed skips a test, and fails it where everything is to run."""

import pytest

from needed import need


def test_what_is_missing_is_skipped_and_in_a_full_run_a_failure():
    need("/usr/bin/thing", "a thing", full=True)
    with pytest.raises(pytest.skip.Exception, match="needs a thing"):
        need(None, "a thing", full=False)
    with pytest.raises(pytest.fail.Exception, match="needs a thing"):
        need(None, "a thing", full=True)
