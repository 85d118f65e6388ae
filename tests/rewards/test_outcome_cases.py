"""Rewards of ARENA, R1-Searcher and Eval-RAR in worked cases."""

from collections.abc import Callable
from typing import Any

import pytest
from outcome_rl_cases import CASES, Case

FACTS: dict[str, Callable[[Any], object]] = {
    "retrievals": lambda outcome: outcome.retrievals,
    "searches": lambda outcome: outcome.searches,
    "evaluations": lambda outcome: outcome.evaluated,
}
"""Facts that follow from the segments. The others need the protocol that wrote them."""


def case_id(case: Case) -> str:
    return f"{case.system}-{case.name}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_reward_components_of_worked_cases(case: Case) -> None:
    outcome = case.outcome()
    found = outcome.components | {"total": outcome.total}
    assert {name: found[name] for name in case.expected} == pytest.approx(case.expected)
    assert not {name for name, part in found.items() if part} - set(case.expected)


@pytest.mark.parametrize("case", [one for one in CASES if FACTS.keys() & one.facts], ids=case_id)
def test_facts_of_worked_cases(case: Case) -> None:
    outcome = case.outcome()
    for name in FACTS.keys() & case.facts.keys():
        assert FACTS[name](outcome) == case.facts[name], name
