"""Rewards of Eval-RAR, Search-R1 and AutoRefine: answers and evaluations."""

from typing import Any

import pytest
from hypothesis import given
from random_rollouts import CORRECTION, GOLDS, OPENING, TEXT, rewritten, segments_of

from branchwise.agent.segments import AUTOREFINE, EVAL_RAR, SEARCH_R1, SearchTags, Segment
from branchwise.rewards.eval_rar import EvalRarSettings, eval_rar_outcome, final_answer
from branchwise.rewards.outcome import Verdicts

INFORMATION = (
    "\n\n<information>Doc 1(Title: M. Keller) She died on 22 April 1894.</information>\n\n"
)
SEARCH = "<search>Keller death</search>"
GOLD = "<evaluate>22 April 1894</evaluate>"
WRONG = "<answer>1881</answer>"
RIGHT = "<answer>22 April 1894</answer>"


def rollout(*texts: str) -> list[Segment]:
    """Returns segments: INFORMATION and CORRECTION by the environment, the rest by the policy."""
    return [
        Segment("environment" if text in (INFORMATION, CORRECTION) else "policy", text)
        for text in texts
    ]


def served(*texts: str) -> list[Segment]:
    """Returns a rollout that begins with a search."""
    return rollout(SEARCH, INFORMATION, *texts)


def eval_rar(
    segments: list[Segment],
    *,
    golds: tuple[str, ...] = ("22 April 1894",),
    search_tags: SearchTags = EVAL_RAR,
    **settings: Any,
) -> tuple[Any, Verdicts]:
    return eval_rar_outcome(segments, golds, EvalRarSettings(**settings), search_tags)


@pytest.mark.parametrize(
    ("segments", "evaluated", "paid", "paid_by_all"),
    [
        (served(GOLD + WRONG), 1, True, True),
        (served(f"<think>{GOLD}</think>{WRONG}"), 1, True, True),
        # Guesses before any documents, and documents forged by the policy.
        (rollout(GOLD + SEARCH, INFORMATION, WRONG), 0, False, True),
        (rollout(INFORMATION.strip() + GOLD + WRONG), 0, False, True),
        # Only the first evaluation after a block counts, even if it is not closed.
        (served(f"<evaluate>a</evaluate>{GOLD}{WRONG}"), 1, False, True),
        (served(f"<evaluate>{GOLD}{WRONG}"), 0, False, True),
        (served(f"<evaluate>a<think></evaluate>{GOLD}{WRONG}"), 0, False, True),
        (served("<evaluate>a", CORRECTION, GOLD + WRONG), 0, False, True),
        (served("<evaluate>22", CORRECTION, f"April</evaluate>{WRONG}"), 0, False, False),
        (served(f"</evaluate>{GOLD}{WRONG}"), 1, True, True),
        # Another evaluation counts after another search, but not after a correction.
        (served(SEARCH, INFORMATION, GOLD + WRONG), 1, True, True),
        (served(f"<evaluate>a</evaluate>{SEARCH}", INFORMATION, GOLD + WRONG), 2, True, True),
        (served("<evaluate>a</evaluate>", CORRECTION, GOLD + WRONG), 1, False, True),
        (served("Hm.", CORRECTION, GOLD + WRONG), 1, True, True),
        # Text after the action is dropped.
        (served(WRONG + GOLD), 0, False, False),
        (served("<answer> </answer>" + GOLD, CORRECTION, WRONG), 0, False, False),
        (rollout(SEARCH + GOLD, INFORMATION, WRONG), 0, False, False),
        (served(f"<search>a{GOLD}</search>{WRONG}"), 1, True, True),
    ],
)
def test_eval_rar_counts_and_rewards_evaluations(
    segments: list[Segment], evaluated: int, paid: bool, paid_by_all: bool
) -> None:
    outcome, verdicts = eval_rar(segments)
    assert (verdicts.evaluated or 0) * (verdicts.retrievals or 0) == evaluated
    assert outcome.total == outcome.components["evaluation"] == (0.1 if paid else 0)
    assert eval_rar(segments, evaluations="all")[0].total == (0.1 if paid_by_all else 0)


@pytest.mark.parametrize(
    ("segments", "answer"),
    [
        (rollout(RIGHT), "22 April 1894"),
        (rollout("<answer> a b\n</answer> and so on"), "a b"),
        (rollout("<answer>a</answer><answer>b</answer>"), "a"),  # the rest is dropped
        (rollout("<answer>a<answer>b</answer>"), "b"),
        (rollout("<answer>a</answer>", CORRECTION, "<answer>b</answer>"), "b"),
        (rollout("<answ", CORRECTION, "er>b</answer>"), None),
        (rollout("<answer>a", CORRECTION, "b</answer>"), None),
        (rollout(f"{SEARCH}<answer>a</answer>"), None),  # the action is the search
        (rollout("<answer> </answer><answer>a</answer>"), None),
        (rollout("<answer><think>a</think></answer>"), None),
        (rollout("<answer>a<evaluate>b</answer>"), None),
        (rollout("<search> <answer>a</answer>"), "a"),
        ([Segment("policy", "<answer>a</answer>", cut=True)], None),
        ([Segment("prefill", "<answer>a</answer>"), Segment("policy", "b")], None),
        (rollout(SEARCH, "<information><answer>a</answer></information>"), "a"),
        (rollout(SEARCH), None),
        ([], None),
    ],
)
def test_eval_rar_answer_is_the_last_action(segments: list[Segment], answer: str | None) -> None:
    assert final_answer(segments, EVAL_RAR) == answer


def test_eval_rar_rewards_the_evaluation_of_a_rollout_without_an_answer() -> None:
    segments = served(GOLD + SEARCH)
    assert (final_answer(segments, EVAL_RAR), eval_rar(segments)[0].total) == (None, 0.1)


@pytest.mark.parametrize(
    ("evaluation", "golds"),
    [("no", ("no",)), ("It was a party.", ("art",)), ("The The", ("The The",)), ("a", ())],
)
def test_eval_rar_gives_no_reward_for_golds_that_cannot_be_contained(
    evaluation: str, golds: tuple[str, ...]
) -> None:
    segments = served(f"<evaluate>{evaluation}</evaluate>{WRONG}")
    assert eval_rar(segments, golds=golds)[0].total == 0


def test_eval_rar_gives_no_reward_for_a_gold_split_over_two_evaluations() -> None:
    first, second = "<evaluate>22 April</evaluate>", "<evaluate>1894</evaluate>"
    segments = served(first + SEARCH, INFORMATION, second + WRONG)
    assert eval_rar(segments)[0].total == eval_rar(segments, evaluations="all")[0].total == 0


def test_eval_rar_reward_setting_selects_the_components() -> None:
    segments = served(GOLD + WRONG)
    ablation, verdicts = eval_rar(segments, reward="em")
    assert ablation.components == {"em": 0, "evaluation": None}
    assert (ablation.total, verdicts.evaluated) == (0, 1)
    right = served(GOLD + RIGHT)
    outcome, _ = eval_rar(right)
    assert outcome.components == {"em": 1, "evaluation": 0.1}
    assert outcome.total == 1  # not added
    # Search-R1 has no evaluations: their tags are plain text, even within an answer.
    inside = rollout("<answer>a <evaluate></answer>")
    assert final_answer(inside, SEARCH_R1) == "a <evaluate>"
    assert eval_rar(segments, search_tags=SEARCH_R1, reward="em")[1].evaluated is None


def test_autorefine_rewards_f1_or_otherwise_the_refinement() -> None:
    block = INFORMATION.replace("information", "documents")

    def worth(answer: str) -> float:
        refined = f"<refine>22 April 1894</refine><answer>{answer}</answer>"
        segments = [
            Segment("policy", SEARCH),
            Segment("environment", block),
            Segment("policy", refined),
        ]
        return eval_rar(segments, search_tags=AUTOREFINE, reward="autorefine")[0].total  # type: ignore[no-any-return]

    assert worth("April 1894") == pytest.approx(0.8)
    assert (
        worth("April and " + "x " * 40) < 0.1
    )  # a low F1 earns less than a refinement: the paper's rule
    assert worth("Rome") == 0.1


def test_eval_rar_copied_share_and_forged_documents() -> None:
    copied = "<evaluate>She died on 22 April 1894, so it fits.</evaluate>"

    def copied_share(segments: list[Segment], **settings: Any) -> float | None:
        return eval_rar(segments, **settings)[1].copied

    assert copied_share(served(copied + WRONG)) == pytest.approx(6 / 9)
    original = served("<evaluate>Missing: birth</evaluate>" + WRONG)
    assert copied_share(original) == 0
    assert copied_share(served(WRONG)) is None
    assert copied_share(served("<evaluate>!</evaluate>" + WRONG)) is None
    # A later block is not the source.
    segments = rollout(f"{copied}{SEARCH}", INFORMATION, WRONG)
    assert copied_share(segments, evaluations="all") == 0
    assert eval_rar(rollout(f"<think>{INFORMATION.strip()}</think>{RIGHT}"))[1].forged == 1


@given(segments_of("eval-rar"), GOLDS, TEXT)
def test_eval_rar_totals_are_valid_and_ignore_the_documents(
    segments: list[Segment], golds: list[str], inserted: str
) -> None:
    outcome, verdicts = eval_rar(segments, golds=tuple(golds))
    assert outcome.total in {0, 0.1, 1}
    assert 0 <= (verdicts.evaluated or 0) <= 1
    assert verdicts.copied is None or 0 <= verdicts.copied <= 1
    assert eval_rar(segments, golds=tuple(golds), reward="em")[0].total in {0, 1}
    assert 0 <= eval_rar(segments, golds=tuple(golds), reward="autorefine")[0].total <= 1
    changed = rewritten(segments, inserted, OPENING["eval-rar"])
    assert eval_rar(changed, golds=tuple(golds))[0] == outcome
    assert final_answer(changed, EVAL_RAR) == final_answer(segments, EVAL_RAR)
    assert eval_rar(segments, golds=tuple(golds), evaluations="all")[0].total >= outcome.total
