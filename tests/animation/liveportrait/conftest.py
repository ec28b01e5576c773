"""PyTorch is the extra that these tests are about."""

import pytest

pytest.importorskip("torch")
