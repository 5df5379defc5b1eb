"""The product beside what other people make, on a real node."""

from tests.e2e.conftest import models, release

__all__ = ["models", "release"]
