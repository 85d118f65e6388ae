"""Base class of every package's settings, and blocks whose class depends on a name in them.

`runs.recipe` composes them into one recipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from .errors import ConfigError
from .http_client import checked_address, shown_url
from .secret_names import looks_like_key
from .text import LEAST, MOST, composed, did_you_mean, fits_int64


class Settings(BaseModel):
    """Immutable, strict settings: unknown keys and numbers that no table can hold are errors."""

    # Hide inputs in pydantic's messages, because a misplaced value may be an API key.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if isinstance(value, int) and not fits_int64(value):
            raise ValueError(f"does not fit into 64 bits: give {LEAST} to {MOST}")
        return value


def _checked_identity(identity: str) -> str:
    """Returns the identity of a server in the form that digests contain.

    It may be the server's former address, which has the form of `shown_url` in digests.

    Raises:
        ValueError: If it is blank, contains a control character, or looks like a key.
    """
    if "://" in identity:
        try:
            return shown_url(
                checked_address(
                    identity, "it", "http://127.0.0.1:8000/v1", "an identity is the bare address"
                )
            )
        except ConfigError as error:
            raise ValueError(str(error)) from None
    name = composed(identity.strip())
    if not name or not name.isprintable():
        raise ValueError("is blank, or contains a control character: give a name, or an address")
    if looks_like_key(name):
        raise ValueError("looks like a key, which would be written to the run: give another name")
    return name


ServerIdentity = Annotated[str, AfterValidator(_checked_identity)]
"""Name that stands for a server in digests instead of its address."""


def describe_errors(error: ValidationError, most: int | None = None) -> str:
    """Returns pydantic's errors (at most `most`), each as "`place`: message"."""
    words = []
    for fault in error.errors(include_url=False)[:most]:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
        place = "".join(steps).removeprefix(".")
        message = fault["msg"].removeprefix("Value error, ")
        words.append(f"`{place}`: {message}" if place else message)
    return "; ".join(words)


@dataclass(frozen=True)
class NamedBlock:
    """Validates a block by the class that its name selects, such as `agent: {protocol: arena}`.

    A block has only the settings of the protocol, scheme, retriever or algorithm that it names, so
    a setting that would have no effect is an unknown one. A pydantic `BeforeValidator`: a union
    would have a fixed list of classes, but plug-ins add to this one.

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
