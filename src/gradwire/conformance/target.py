"""Which codec is meant: by its name in the registry, or by module and class."""

from __future__ import annotations

from gradwire.core.codec import Codec, codecs
from gradwire.core.contract import check_class
from gradwire.core.errors import ConfigError, suggestion
from gradwire.core.own_modules import load
from gradwire.core.registry import Registry, parse


def chosen(target: str) -> list[Codec]:
    """The codec, and the variants that its class names.

    Args:
        target: a spec, or ``module:Class``, with arguments if you like: ``"my_module:MyCodec(bits=4)"``.

    >>> [codec.spec for codec in chosen("fp16")]
    ['fp16', 'fp16(scale=8.0)', "fp16(sum='float32')"]
    """
    found = _own(target) if ":" in target.partition("(")[0] else codecs.build(target)
    variants = [_like(found, spec) for spec in type(found).variants]
    return [found, *(one for one in variants if one != found)]


def _own(target: str) -> Codec:
    place, _, spec = target.partition(":")
    module = load(place, "check")
    name, _, _ = parse(spec, "codec")
    cls = getattr(module, name, None)
    if isinstance(cls, Codec):
        return cls
    if cls is None:
        there = [n for n, value in vars(module).items() if isinstance(value, type) and issubclass(value, Codec)]
        hint = suggestion(name, there) if there else "derive a class from gradwire.Codec there"
        raise ConfigError(f"check: module {place!r} has no {name!r}; {hint}")
    check_class(cls)
    return _built(cls, spec)


def _like(codec: Codec, spec: str) -> Codec:
    """A variant, which may belong to a class that nobody has registered."""
    own = parse(spec, "codec")[0] == codec.name
    return _built(type(codec), spec) if own else codecs.build(spec)


def _built(cls: type[Codec], spec: str) -> Codec:
    """What `spec` describes, of this class."""
    alone: Registry[Codec] = Registry("codec", "gradwire.codecs")
    name = parse(spec, "codec")[0]
    alone.register(cls)
    return alone.build(spec.replace(name, cls.name, 1))
