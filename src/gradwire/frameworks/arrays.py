"""Arrays of other frameworks as torch tensors and back, without a copy where both sides allow it (DLPack).

Into torch nothing is copied. On the way back JAX and TensorFlow want an address that is a multiple of 64 bytes; what
lies elsewhere is copied. Inside a compiled program (`jax.jit`, `tf.function`) arrays have no values yet: there the
program calls back to Python when it runs, and copies what comes back.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import dlpack

from gradwire.core.errors import Incompatible, MissingExtra

ALIGNMENT = 64  # bytes


class Framework(ABC):
    """One framework's arrays."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]  # in which its array types are
    channels_last: ClassVar[bool] = False  # of kernels the last dimension counts outputs, else the first

    @abstractmethod
    def to_torch(self, array: Any) -> Tensor:
        """The same memory as a tensor."""

    @abstractmethod
    def from_torch(self, tensor: Tensor) -> Any:
        """A tensor as an array; nobody may write to the tensor afterwards."""

    def dense(self, array: Any) -> Any:
        """An array in the place of one that lists rows."""
        return array

    def is_traced(self, array: Any) -> bool:
        """Whether it stands for an array of a program that is being compiled."""
        return False

    def call(self, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], arrays: Sequence[Any]) -> list[Any]:
        """Let the program that is being compiled call `function`, which gives tensors of the same shapes and dtypes."""
        raise NotImplementedError


class NumPy(Framework):
    name, modules = "NumPy", ("numpy",)

    def to_torch(self, array: Any) -> Tensor:
        return dlpack.from_dlpack(array)

    def from_torch(self, tensor: Tensor) -> Any:
        return tensor.numpy()


class Torch(Framework):
    name, modules = "torch", ("torch",)

    def to_torch(self, array: Any) -> Tensor:
        found: Tensor = array.detach()
        return found

    def from_torch(self, tensor: Tensor) -> Any:
        return tensor


class Jax(Framework):
    name, modules, channels_last = "JAX", ("jax", "jaxlib"), True

    def to_torch(self, array: Any) -> Tensor:
        if not array.is_fully_addressable or len(array.devices()) > 1:
            raise Incompatible(
                f"gradwire: an array of JAX lies on {len(array.devices())} devices, and a rank hands in arrays of one. "
                "Give each process one device, or use gradwire.frameworks.jax_codecs inside shard_map."
            )
        return dlpack.from_dlpack(array)

    def from_torch(self, tensor: Tensor) -> Any:
        return needed("jax").dlpack.from_dlpack(tensor)

    def is_traced(self, array: Any) -> bool:
        return isinstance(array, needed("jax").core.Tracer)

    def call(self, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], arrays: Sequence[Any]) -> list[Any]:
        jax, callbacks = needed("jax"), needed("jax.experimental")
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]

        def on_host(*values: Any) -> list[Any]:
            found = function([dlpack.from_dlpack(v) for v in values])
            return [_numpy(t, shape.dtype) for t, shape in zip(found, shapes, strict=True)]

        found: list[Any] = callbacks.io_callback(on_host, shapes, *arrays, ordered=True)
        return found


class TensorFlow(Framework):
    name, modules, channels_last = "TensorFlow", ("tensorflow",), True

    def to_torch(self, array: Any) -> Tensor:
        return dlpack.from_dlpack(needed("tensorflow").experimental.dlpack.to_dlpack(array))

    def from_torch(self, tensor: Tensor) -> Any:
        aligned = tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
        return needed("tensorflow").experimental.dlpack.from_dlpack(aligned.__dlpack__())

    def dense(self, array: Any) -> Any:
        """Embeddings give rows and their numbers, a row as often as it was looked up."""
        return needed("tensorflow").convert_to_tensor(array)

    def is_traced(self, array: Any) -> bool:
        return not hasattr(array, "numpy")

    def call(self, function: Callable[[Sequence[Tensor]], Sequence[Tensor]], arrays: Sequence[Any]) -> list[Any]:
        tf = needed("tensorflow")

        def on_host(*values: Any) -> list[Any]:
            return [self.from_torch(t) for t in function([self.to_torch(v) for v in values])]

        found: list[Any] = tf.py_function(on_host, arrays, [a.dtype for a in arrays])
        for array, given in zip(found, arrays, strict=True):
            array.set_shape(given.shape)
        return found


FRAMEWORKS: tuple[Framework, ...] = (NumPy(), Torch(), Jax(), TensorFlow())


def framework_of(array: Any) -> Framework:
    """Whose array it is.

    Args:
        array: of any framework that is known here.
    """
    homes = {cls.__module__.partition(".")[0] for cls in type(array).__mro__}
    for framework in FRAMEWORKS:
        if homes & set(framework.modules):
            return framework
    known = ", ".join(framework.name for framework in FRAMEWORKS)
    raise Incompatible(
        f"gradwire: arrays of {known} can be reduced, got {type(array).__module__}.{type(array).__qualname__}; convert "
        "it to one of these first"
    )


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that `tf.function` calls without rewriting it and all that it calls, which takes seconds.

    Args:
        function: to call.
    """
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None:
        return function
    found: Callable[..., Any] = tensorflow.autograph.experimental.do_not_convert(function)
    return found


def needed(module: str) -> Any:
    """An optional package, imported; its extra is named where it is missing.

    Args:
        module: to import.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != package:
            raise
        raise _missing(package) from None


def check_installed(package: str) -> None:
    """Refuse what `needed` would, without the seconds that an import takes.

    Args:
        package: that will be imported.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(package)


def _missing(package: str) -> MissingExtra:
    extra = {"optax": "jax", "orbax": "jax"}.get(package, package)
    return MissingExtra(f"gradwire: {package} is not installed; run: pip install 'gradwire[{extra}]'")


def _numpy(tensor: Tensor, dtype: Any) -> Any:
    """As NumPy's array of that dtype; NumPy itself has no bfloat16, JAX brings one."""
    return tensor.view(torch.int16).numpy().view(dtype) if tensor.dtype == torch.bfloat16 else tensor.numpy()
