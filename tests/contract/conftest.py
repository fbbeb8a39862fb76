"""Shared by the contract tests: a backend's process-wide switches do not outlive the test that set them."""

import ctypes
import os
import platform
import sys

import pytest

from conftest import MASK, cpus
from layermark.backends.base import backend

_DEFAULT_ENVIRONMENT = ctypes.c_void_p(-1)
"""FE_DFL_ENV of the C library: the floating-point environment that a program starts with."""
# As in every worker on a CPU: left alone, TensorFlow has oneDNN's kernels on some CPUs only, and no others for some
# graphs, and runs on a GPU where it sees one.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


@pytest.fixture(autouse=True, scope="session")
def synchronous_calls():
    """JAX decides with its first operation whether calls return early; that must be Layermark's in every process."""
    if backend("jax").installed:
        backend("jax").load()


@pytest.fixture(autouse=True, scope="session")
def all_cpus_for_openvino():
    """OpenVINO counts the CPUs when it is loaded, and makes no more threads ever after."""
    if backend("openvino").installed:
        with cpus(MASK):
            backend("openvino").load()


@pytest.fixture(autouse=True)
def subnormals_again():
    """A backend flushes subnormals in its process, which is this one here; other tests need them."""
    yield
    if platform.system() == "Linux":
        ctypes.CDLL("libm.so.6").fesetenv(_DEFAULT_ENVIRONMENT)


@pytest.fixture(autouse=True)
def _jax_in_32_bits_again():
    """JAX computes in 64 bits for a whole process once a program asks for it; the next test is another program's."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_enable_x64", False)
