"""Strategies (how a codec's payloads travel) and drivers (who carries exchanges out).

Strategies: `all_reduce`, `all_gather`, `scatter_reduce_gather`; `choose` picks one. `hierarchical` puts one of them
between nodes, and full precision inside.
Drivers: `local` (N workers in one process), `c10d` (torch.distributed), `trace` (counts, sends nothing).
"""

from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.all_reduce import AllReduce
from gradwire.collectives.hierarchical import Hierarchical
from gradwire.collectives.scatter_reduce_gather import ScatterReduceGather

__all__ = ["AllGather", "AllReduce", "Hierarchical", "ScatterReduceGather"]
