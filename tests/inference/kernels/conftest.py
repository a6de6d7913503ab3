"""One device for all kernel tests."""

import pytest

from tests.inference.kernels.harness import Gpu, open_gpu


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    return open_gpu()
