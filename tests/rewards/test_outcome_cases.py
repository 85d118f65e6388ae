"""Rewards of ARENA, R1-Searcher and Eval-RAR in worked cases."""

import pytest
from outcome_rl_cases import CASES, Case

FACTS = {"retrievals", "searches", "evaluations"}
"""Facts that follow from the segments. The others need the protocol that wrote them."""


def case_id(case: Case) -> str:
    return f"{case.system}-{case.name}"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_reward_components_of_worked_cases(case: Case) -> None:
    outcome, _ = case.outcome()
    parts = {**outcome.components, "total": outcome.total}
    assert {name: parts[name] for name in case.expected} == pytest.approx(case.expected)
    assert not {name for name, part in parts.items() if part} - set(case.expected)


@pytest.mark.parametrize("case", [case for case in CASES if FACTS & case.facts.keys()], ids=case_id)
def test_facts_of_worked_cases(case: Case) -> None:
    _, verdicts = case.outcome()
    retrievals = verdicts.retrievals or 0
    evaluations = (verdicts.evaluated or 0) * retrievals
    facts = {"retrievals": retrievals, "searches": retrievals, "evaluations": evaluations}
    for name in FACTS & case.facts.keys():
        assert facts[name] == case.facts[name], name
