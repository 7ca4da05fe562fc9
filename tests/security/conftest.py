"""Certificates for the session."""

from __future__ import annotations

import pytest

from tests.security.certificates import Certificates, make


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    pytest.importorskip("cryptography")
    return make(tmp_path_factory.mktemp("certificates"))
