"""Primitives: one folder each, `reference.py` in plain torch defines the meaning."""
