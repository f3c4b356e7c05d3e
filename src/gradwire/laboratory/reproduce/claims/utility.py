"""The claims of the study on utility, in its order: sizes, times, regimes, counts, tables."""

from __future__ import annotations

from gradwire.laboratory.reproduce.claims import utility_counts, utility_regimes, utility_tables, utility_times

PAPER = "Agarwal et al., On the Utility of Gradient Compression, MLSys 2022, arXiv:2103.00543"
CLAIMS = (
    *utility_tables.SIZES_CLAIMS,
    *utility_times.CLAIMS,
    *utility_regimes.CLAIMS,
    *utility_counts.CLAIMS,
    *utility_tables.CLAIMS,
)
