"""Experiments that measure: launcher, environment fingerprint, one file per experiment."""
