"""What the tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture
def people(monkeypatch):
    """Somebody reads it on a terminal of 80 columns."""
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    monkeypatch.setenv("COLUMNS", "80")
