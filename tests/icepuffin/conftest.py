"""Marks that the modules of `langchain-tests` have: they are of plugins that it brings, which are not loaded."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for name in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: of tests of chat models, of which there are none here")
