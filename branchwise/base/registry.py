"""Implementations by name: Branchwise's own, and those that plug-ins register."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Generic, TypeVar

from .errors import ConfigError
from .text import did_you_mean

T = TypeVar("T")
OWN_PACKAGE = __name__.partition(".")[0]


class Registry(Mapping[str, T], Generic[T]):
    """Implementations of one kind by the name that recipes use.

    A module registers its own implementations when it is imported. Those of Branchwise are
    imported at the first look-up, so that a room's settings can name a registry of classes that
    are built on them.
    """

    def __init__(self, kind: str, *modules: str) -> None:
        """Names the kind for error messages, such as "protocol"; `modules` register our own."""
        self.kind = kind
        self._modules = list(modules)
        self._entries: dict[str, T] = {}
        self._origins: dict[str, str] = {}

    def add(self, name: str, entry: T, module: str) -> T:
        """Registers an implementation; returns it, so that decorators can use this.

        A plug-in may replace its own, as when the cell of a notebook runs again.

        Args:
            name: Name in recipes.
            entry: Class or function.
            module: Name of the module that defines it, which decides its `origin`.

        Raises:
            ConfigError: If another implementation has the name.
        """
        if module.partition(".")[0] != OWN_PACKAGE:
            self._load_own()  # so that a plug-in cannot take one of our names first
        origin = origin_of(module)
        is_own_again = origin != "" and self._origins.get(name) == origin
        if self._entries.get(name, entry) is not entry and not is_own_again:
            raise ConfigError(
                f"{module}: the {self.kind} `{name}` exists already. Choose another name"
            )
        self._entries[name] = entry
        self._origins[name] = origin
        return entry

    def named(self, name: str) -> Callable[[T], T]:
        """Returns a decorator that registers a function or class (see `add`)."""
        return lambda entry: self.add(name, entry, entry.__module__)

    def origin(self, name: str) -> str | None:
        """Returns the distribution and version that registered a name; None for our own."""
        self._load_own()
        return self._origins[name] or None

    def unknown_message(self, name: object) -> str:
        """Returns the rest of an error message about a name that is not registered."""
        hint = did_you_mean(str(name), self) or f"; use one of {', '.join(self)}"
        return f"no such {self.kind}{hint}"

    def _load_own(self) -> None:
        while self._modules:
            import_module(self._modules.pop())

    def __getitem__(self, name: str) -> T:
        self._load_own()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load_own()
        return iter(sorted(self._entries))  # not in the order of imports

    def __len__(self) -> int:
        self._load_own()
        return len(self._entries)


def origin_of(module: str) -> str:
    """Returns a module's distribution and version; "" for our own modules.

    A module outside a distribution is identified by the hash of its file.
    """
    top = module.partition(".")[0]
    if top == OWN_PACKAGE:
        return ""
    for distribution in packages_distributions().get(top, ()):
        return f"{distribution} {version(distribution)}"
    file = getattr(import_module(module), "__file__", None)
    content = Path(file).read_bytes() if file else b""
    return f"{module} {blake2b(content, digest_size=6).hexdigest()}"
