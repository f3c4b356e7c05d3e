"""A real slow network on one machine: hosts are network namespaces, links are shaped by the kernel.

    with Network(hosts=4, rate="1gbit") as network:
        print(network.verify().describe())
        run(network, ["python", "train.py"])        # RANK, WORLD_SIZE, MASTER_ADDR … are set, as torchrun does

Nothing outside the namespaces is touched, and the kernel removes them with the process that made them.
"""

from gradwire.laboratory.hosts.commands import Fault, run
from gradwire.laboratory.hosts.network import Network
from gradwire.laboratory.hosts.probe import Verified

__all__ = ["Fault", "Network", "Verified", "run"]
