"""Blocks of settings whose class depends on a name in them, such as `agent: {protocol: arena}`.

A block has only the settings of the protocol, scheme, retriever or algorithm that it names, so a
setting that would have no effect is an unknown one. A pydantic union would have a fixed list of
classes; plug-ins add to this one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from .text import did_you_mean


@dataclass(frozen=True)
class NamedBlock:
    """Validates a block by the class that its name selects; a pydantic `BeforeValidator`.

    Attributes:
        key: Setting with the name, such as `protocol`.
        default: Name of a block that does not set it.
        kind: Kind of the name for messages, such as "protocol".
        classes: Returns the settings classes by name.
    """

    key: str
    default: str
    kind: str
    classes: Callable[[], Mapping[str, type[BaseModel]]]

    def __call__(self, block: object) -> object:
        """Returns the settings of a mapping; anything else stays as it is."""
        if not isinstance(block, Mapping):
            return block
        return self.class_of(block).model_validate(block)

    def class_of(self, block: Mapping[str, Any]) -> type[BaseModel]:
        """Returns the settings class of an unchecked block.

        Raises:
            ValidationError: If its name is unknown.
        """
        name, classes = block.get(self.key, self.default), self.classes()
        if isinstance(name, str) and name in classes:
            return classes[name]
        hint = did_you_mean(str(name), classes) or f"; use one of {', '.join(sorted(classes))}"
        unknown = PydanticCustomError(
            "unknown_name", "no such {kind}{hint}", {"kind": self.kind, "hint": hint}
        )
        fault = InitErrorDetails(type=unknown, loc=(self.key,), input=name)
        raise ValidationError.from_exception_data(self.kind, [fault])


def shared_settings(kind: type[BaseModel], former: type[BaseModel]) -> set[str]:
    """Returns the settings of a class that a former one also has, with the same bounds."""
    fields = former.model_fields
    return {
        name
        for name, field in kind.model_fields.items()
        if name in fields and field.metadata == fields[name].metadata
    }


def named_block(field: FieldInfo) -> NamedBlock | None:
    """Returns the `NamedBlock` of a field, if it has one."""
    validators = (getattr(entry, "func", None) for entry in field.metadata)
    return next((v for v in validators if isinstance(v, NamedBlock)), None)
