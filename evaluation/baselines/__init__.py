"""Baselines of an evaluation; every module of this package is one.

A baseline is called after its module (`one_shot` is "one-shot"), whose function `baseline` says how
it is asked. A new baseline is a new module here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from evaluation.run import Begin
from retrieval.interface import Retriever
from storage.records import Passage, Question


@dataclass(frozen=True)
class Material:
    """Inputs of a baseline.

    Attributes:
        corpus: Passages by id.
        retriever: Finds passages, `top_k` per search.
        others: Loads the questions of split `train` that are not evaluated.
    """

    corpus: Mapping[str, Passage]
    retriever: Retriever
    top_k: int
    others: Callable[[], Iterable[Question]]


@dataclass(frozen=True)
class Baseline:
    """How a baseline answers.

    Attributes:
        begin: Returns the state that a question starts from; by default the protocol's root. A
            terminal state is the answer.
        protocol: Name of the protocol; by default one turn of reading.
        max_steps: Budget of a trajectory; by default the recipe's.
        can_be_asked: Whether the baseline can take a question; others are left out.
        left_out: Why questions are left out, as a relative clause.
        asks_model: False if every question starts from its answer.
        deciding: Settings that decide the answers, apart from model and prompts; part of the
            evaluation's name.
    """

    begin: Begin | None = None
    protocol: str = "reading"
    max_steps: int | None = None
    can_be_asked: Callable[[Question], bool] = lambda question: True
    left_out: str = ""
    asks_model: bool = True
    deciding: Mapping[str, Any] = field(default_factory=dict)


def baseline_names() -> tuple[str, ...]:
    """Returns the names of all baselines, sorted."""
    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(__path__)))


def load_baseline(name: str, material: Material) -> Baseline:
    """Makes the baseline of that name (one of `baseline_names`)."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    made: Baseline = module.baseline(material)
    return made
