"""What belongs to its process, and is neither copied nor pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from gradwire.core.errors import Incompatible


class StaysHere:
    """Threads and process groups are behind it: whoever copies or pickles it is told what to do instead.

    Example:
        >>> import copy, gradwire
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="topk")
        >>> copy.deepcopy(cluster)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradwire.core.errors.Incompatible: gradwire: this VirtualCluster belongs to its process and cannot be copied ...
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise Incompatible(
            f"gradwire: this {type(self).__name__} belongs to its process and cannot be copied or pickled. Save what "
            "it keeps, by its state_dict(s), and load that into a new one; a model can be copied without it."
        )
