"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import layermark

FOUND = [info.name for info in pkgutil.walk_packages(layermark.__path__, "layermark.") if "__main__" not in info.name]
# Backends may need a framework that is not installed.
FREE = [name for name in FOUND if not name.startswith("layermark.backends.") or name.endswith((".base", ".null"))]


@pytest.mark.parametrize("name", FREE)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
