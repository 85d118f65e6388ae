"""Loads plug-ins: modules that register protocols, rewards, retrievers and more (docs/plugins.md).

They come from the entry points of installed distributions, and from `--plugin` on the command line;
never from a recipe, so a stranger's recipe runs no code.
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from branchwise.agent import PROTOCOLS, AgentSettings
from branchwise.base import ConfigError
from branchwise.retrieval import RETRIEVERS, RetrievalSettings
from branchwise.rewards import SCHEMES, SchemeSettings

GROUP = "branchwise"
"""Group of the entry points; each names a module that registers when it is imported."""

_named: list[str] = []


def load_plugins(names: Sequence[str] = ()) -> None:
    """Imports the installed plug-ins, and the named ones; each once per process.

    Args:
        names: Modules, such as "mine.rewards", or paths of files that end in ".py".

    Raises:
        ConfigError: If one cannot be imported, or registers a name that is taken.
    """
    for point in entry_points(group=GROUP):
        _load_installed(point)
    for name in names:
        if name not in _named:
            _load_named(name)
            _named.append(name)


def named_plugins() -> tuple[str, ...]:
    """Returns the plug-ins of the command line, for the stages that it starts."""
    return tuple(_named)


@cache
def _load_installed(point: EntryPoint) -> None:
    try:
        point.load()
    except ConfigError:
        raise
    except Exception as error:
        distribution = point.dist.name if point.dist else point.value
        raise ConfigError(
            f"plug-in {point.value} of {distribution}: cannot be imported "
            f"({type(error).__name__}: {error}). Repair or uninstall {distribution}"
        ) from error


def _load_named(name: str) -> None:
    try:
        if name.endswith(".py"):
            _load_file(Path(name))
        else:
            import_module(name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"--plugin {name}: cannot be imported ({type(error).__name__}: {error}). Give a module "
            "that Python finds, or the path of a file that ends in .py"
        ) from error


def _load_file(file: Path) -> None:
    module_name = f"branchwise_plugin_{file.stem}"
    spec = spec_from_file_location(module_name, file.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise


def plugin_versions(
    agent: AgentSettings, rewards: SchemeSettings, retrieval: RetrievalSettings
) -> dict[str, str]:
    """Returns distribution and version, by role, of the plug-ins that these blocks name.

    They are part of a run's inputs, so rows of two versions are not mixed.
    """
    origins = {
        "protocol_plugin": PROTOCOLS.origin(agent.protocol),
        "reward_plugin": SCHEMES.origin(rewards.scheme),
        "retriever_plugin": RETRIEVERS.origin(retrieval.kind),
    }
    return {role: origin for role, origin in origins.items() if origin is not None}
