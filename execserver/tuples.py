"""Tuples with named members for what is loaded before a server prints its URL: `typing` comes after that.

`typing`, and with it `re`, `enum` and `contextlib`, would be half of all instructions until then.  A class
says what it has just as with `typing.NamedTuple`, which is what type checkers take this for.
"""

from __future__ import annotations

from _operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NamedTuple(tuple):  # type: ignore[type-arg]
    """The base of such classes: members by annotations, defaults by values, as `typing.NamedTuple` has it."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _field_defaults: dict[str, Any] = {}

    def __init_subclass__(cls) -> None:
        """Make each annotation a member."""
        cls._fields = tuple(cls.__annotations__)
        cls._field_defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}
        for at, name in enumerate(cls._fields):
            setattr(cls, name, property(itemgetter(at)))

    def __new__(cls, *given: Any, **named: Any) -> NamedTuple:
        """Return a tuple of the members; raise TypeError unless each has one value or a default."""
        values = [*given]
        for name in cls._fields[len(given) :]:
            if name in named:
                values.append(named.pop(name))
            elif name in cls._field_defaults:
                values.append(cls._field_defaults[name])
            else:
                raise TypeError(f"{cls.__name__} needs a value for {name}")
        if named or len(values) > len(cls._fields):
            raise TypeError(f"{cls.__name__} has one value for each of {', '.join(cls._fields)}")
        return tuple.__new__(cls, values)

    def _replace(self, **changed: Any) -> NamedTuple:
        """Return the same with other values for some members."""
        return type(self)(**{**dict(zip(self._fields, self, strict=True)), **changed})

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return what a copy is made of."""
        return tuple(self)

    def __repr__(self) -> str:
        members = zip(self._fields, self, strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in members)})"
