"""Skip these tests without PyTorch."""

import pytest

pytest.importorskip("torch")
