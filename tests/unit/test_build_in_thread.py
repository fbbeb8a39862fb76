"""What is built in a thread of its own."""

import threading

import pytest

from layermark.backends.base import build_in_thread


def test_the_result_comes_from_another_thread():
    assert threading.get_ident() != build_in_thread(threading.get_ident)


def test_what_goes_wrong_there_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        build_in_thread(lambda: 1 // 0)
