"""Where a measurement was made, without telling who made it."""

from __future__ import annotations

import json
import os
import platform
import socket
import string
from pathlib import Path

from gradwire.core import environment


def test_the_fingerprint_is_complete_and_anonymous():
    found = environment.fingerprint("gloo over loopback")
    assert set(found) == {
        "cpu",
        "cores",
        "memory_bytes",
        "gpu",
        "os",
        "python",
        "torch",
        "numba",
        "gradwire",
        "backend",
    }
    assert found["python"] == platform.python_version()
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 1 << 28
    text = json.dumps(found)
    assert os.sep not in text.replace("\\/", "")
    assert len(socket.gethostname()) < 4 or socket.gethostname() not in text


def test_the_commit_is_a_hash_or_unknown():
    name, dirty = environment.commit()
    assert name == "unknown" or (len(name) in (40, 64) and set(name) <= set(string.hexdigits))
    assert isinstance(dirty, bool)


def test_a_copy_in_somebody_elses_checkout_has_no_commit(monkeypatch):
    monkeypatch.setattr(environment, "_ask", lambda *command: str(Path.cwd() / "elsewhere"))
    assert environment.commit() == ("unknown", False)


def test_without_git_the_commit_is_unknown_or_what_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("GRADWIRE_COMMIT", raising=False)
    assert environment.commit() == ("unknown", False)
    monkeypatch.setenv("GRADWIRE_COMMIT", "abc")
    assert environment.commit() == ("abc", False)
