"""The clock need not look through what other tests import."""

from collections.abc import Iterator

import pytest

from rollcast.simulator.virtual import install

LARGE = ("matplotlib", "scipy", "sympy", "torch", "transformers", "triton", "vllm")
"""No test here asks these for the time, and each clock looks at every name of every module."""


@pytest.fixture(scope="module", autouse=True)
def few_modules() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(install, "NOT_LOOKED_AT", (*install.NOT_LOOKED_AT, *LARGE))
        yield
