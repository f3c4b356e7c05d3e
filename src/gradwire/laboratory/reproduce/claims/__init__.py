"""The study's checkable claims, in its order: times, regimes, counts, tables."""

from gradwire.laboratory.reproduce.claims import counts, regimes, tables, times

ALL = (*tables.SIZES_CLAIMS, *times.CLAIMS, *regimes.CLAIMS, *counts.CLAIMS, *tables.CLAIMS)
