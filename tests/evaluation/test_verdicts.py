"""Verdicts of each protocol's rules on prediction rows, compared with the worked cases."""

from typing import Any

import pytest
from agent_protocols import agent_settings
from outcome_rl_cases import CASES, UNREACHABLE, Case, asked, follow
from scripted_engine import ScriptedEngine, ScriptedRetriever

from branchwise.agent.environment import Environment
from branchwise.agent.protocols import protocol_of
from branchwise.engines.sampling import Capabilities, Sampling
from branchwise.evaluation.answering import Answerer
from branchwise.evaluation.prediction_scoring import score_trajectory
from branchwise.types import Prediction

REACHED = [case for case in CASES if f"{case.system}-{case.name}" not in UNREACHABLE]


def case_of(system: str, name: str) -> Case:
    return next(case for case in CASES if (case.system, case.name) == (system, name))


async def row_of(case: Case) -> Prediction:
    end, environment = await follow(case)
    return score_trajectory(asked(case), end, environment, policy="p")


@pytest.mark.parametrize("case", REACHED, ids=lambda case: f"{case.system}-{case.name}")
async def test_rows_agree_with_the_worked_cases(case: Case) -> None:
    row, expected = await row_of(case), case.expected
    if case.system == "arena":
        assert row.format_ok == (expected["format"] == 1) == (row.format_failures == ())
        assert row.relevance == expected["relevance"]
        full = None if row.relevance is None else row.relevance == 1
        assert row.relevance_full is full
        right = None if full is None else row.format_ok and full and row.em == 1
        assert row.all_correct is right
        if "accuracy" not in case.settings and "bonus" in expected:
            assert bool(row.all_correct) == (expected["bonus"] == 10)
        assert row.retrievals is row.corrections is row.forged is None
    if case.system == "r1-searcher":
        paid = 0.5 if case.settings["stage"] == 1 else 0
        assert row.format_ok == (expected["format"] == paid) == (row.format_failures == ())
        assert row.relevance is row.all_correct is row.corrections is row.forged is None
    if case.system == "eval-rar":
        assert row.format_ok == (row.corrections == 0 and row.stop_reason != "invalid")
        assert row.format_failures is row.relevance is row.all_correct is None
        share = case.facts.get("evaluations")
        assert share is None or share == (row.evaluated or 0) * (row.retrievals or 0)
    facts: dict[str, Any] = {
        "retrievals": row.retrievals,
        "searches": row.retrievals,
        "steps": row.steps,
    }
    facts |= {"valid_searches": row.valid_searches, "corrections": row.corrections}
    facts |= {"stop": row.stop_reason}
    assert {name: facts[name] for name in case.facts if name in facts} == {
        name: value for name, value in case.facts.items() if name in facts
    }
    last = (await follow(case))[0].moves[-1].usage
    assert row.turn_tokens == last.input_tokens + last.output_tokens


async def test_copied_and_forged_are_none_if_they_cannot_happen() -> None:
    copied = await row_of(case_of("eval-rar", "evaluation_copies_documents"))
    assert copied.copied is not None and copied.copied > 0.5
    assert (copied.evaluated, copied.forged) == (1.0, 0)
    forged = await row_of(case_of("eval-rar", "policy_wrote_information"))
    assert (forged.forged, forged.copied, forged.evaluated) == (1, None, None)


async def test_format_failures_name_the_broken_rules() -> None:
    assert (await row_of(case_of("arena", "text_before"))).format_failures == ("outside",)
    late = await row_of(case_of("r1-searcher", "query_outside_think"))
    assert late.format_failures is not None and "query" in late.format_failures


WITH_RULES = ("arena", "r1-searcher", "eval-rar", "search-r1", "autorefine")


@pytest.mark.parametrize("name", WITH_RULES)
async def test_decoding_is_unconstrained_if_the_format_is_measured(name: str) -> None:
    can = Capabilities(structured_output=True, json_schema=True, token_ids=True)
    engine = ScriptedEngine(lambda _: "<search>a</search>", capabilities=can)
    protocol = protocol_of(agent_settings(name))
    environment = Environment(protocol, engine, ScriptedRetriever(), top_k=3)
    question = asked(case_of("arena", "all_full"))
    await Answerer(environment, "p", Sampling()).answer(question)
    assert engine.asked and {request.structure for request in engine.asked} == {None}
