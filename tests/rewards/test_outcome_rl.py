"""Rewards of ARENA, R1-Searcher and Eval-RAR: worked cases, exploits, and properties."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcome_rl_cases import CASES, Case

from agent.segments import AUTOREFINE, EVAL_RAR, SEARCH_R1, SearchTags, Segment
from rewards.arena import ArenaOutcome, ArenaSettings, arena_outcome
from rewards.eval_rar import EvalRarOutcome, EvalRarSettings, eval_rar_outcome
from rewards.r1_searcher import R1SearcherOutcome, R1SearcherSettings, r1_searcher_outcome

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


# ARENA


def reply(
    relevance: str = "[2,4]", analysis: str = "2 says 1811, 4 says 1864.", answer: str = "Korva"
) -> str:
    sections = {"relevance": relevance, "analysis": analysis, "answer": answer}
    return "\n".join(f"<{name}>{content}</{name}>" for name, content in sections.items())


def arena(
    text: str = "",
    *,
    golds: tuple[str, ...] = ("Korva",),
    supporting: tuple[int, ...] | None = (2, 4),
    judged: bool | None = None,
    cut: bool = False,
    **settings: Any,
) -> ArenaOutcome:
    return arena_outcome(
        [Segment("policy", text or reply(), cut)],
        golds,
        ArenaSettings(**settings),
        reference_count=4,
        supporting=supporting,
        judged=judged,
    )


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        (reply(), ()),
        (reply(relevance=" [ 002 ,\n4 ] "), ()),
        (reply(relevance="[]"), ()),
        (reply(relevance="[2,2,4]"), ()),
        (f"\n{reply()}\u00a0", ()),
        (reply(answer=""), ("blank",)),
        (reply(analysis="\n"), ("blank",)),
        (reply(relevance=""), ("list",)),
        (reply(relevance="[2,4,]"), ("list",)),
        (reply(relevance="[2,,4]"), ("list",)),
        (reply(relevance="[2 4]"), ("list",)),
        (reply(relevance="2,4"), ("list",)),
        (reply(relevance="["), ("list",)),
        (reply(relevance="[[2,4]]"), ("list",)),
        (reply(relevance="[2][4]"), ("list",)),
        (reply(relevance="[+2,4]"), ("list",)),
        (reply(relevance="[2.0,4]"), ("list",)),
        (reply(relevance="[²,4]"), ("list",)),  # superscript: isdigit() is true, but int() raises
        (reply(relevance="[٢,٤]"), ("list",)),
        (reply(relevance="[0000002,4]"), ("list",)),  # seven digits
        (reply(relevance="[2,\u200b4]"), ("list",)),
        (reply(relevance="[0,2,4]"), ("range",)),
        (reply(relevance="[5]"), ("range",)),
        (reply() + "<answer>Korva</answer>", ("sections",)),
        (reply() + "</analysis>", ("sections",)),
        (reply(analysis="<answer>Korva</answer>"), ("sections",)),
        (reply(analysis="see <relevance>"), ("sections",)),
        (reply().replace("<answer>", "<Answer>"), ("sections",)),
        (reply() + "Hope it helps.", ("outside",)),
        ("\u200b" + reply(), ("outside",)),
        ("Korva", ("sections",)),
    ],
)
def test_arena_format_failures(text: str, failures: tuple[str, ...]) -> None:
    outcome = arena(text)
    assert outcome.failures == failures
    assert outcome.components["format"] == float(not failures)


def test_arena_truncated_reply_fails_the_format_but_is_scored() -> None:
    outcome = arena(cut=True)
    assert outcome.failures == ("cut",)
    assert outcome.components == {"format": 0, "accuracy": 1, "relevance": 1, "bonus": 0}


@pytest.mark.parametrize(
    ("relevance", "worth"),
    [
        ("[4,2]", 1),
        ("[2,4,4]", 1),
        ("[2]", 0.5),
        ("[1,2,3,4]", 0.5),  # citing everything
        ("[2,4,0]", 0.5),
        ("[2,4,999999]", 0.5),
        ("[1,3]", 0),
        ("[]", 0),
        ("two and four", 0),
    ],
)
def test_arena_relevance(relevance: str, worth: float) -> None:
    assert arena(reply(relevance=relevance)).relevance == worth


def test_arena_relevance_is_none_if_the_supporting_references_are_unknown() -> None:
    for text in (reply(), reply(relevance="[]"), "no section at all"):
        for supporting in (None, ()):
            outcome = arena(text, supporting=supporting)
            assert outcome.relevance is None
            assert outcome.all_correct is None
            assert outcome.total == sum(v for v in outcome.components.values() if v is not None)
    assert arena("no section at all").relevance == 0


def test_arena_gives_no_reward_for_several_guesses() -> None:
    assert arena(reply() + "<answer>Tessel</answer>").accuracy == 0
    assert arena(reply(answer="Tessel") + "<answer>Korva</answer>").accuracy == 0
    assert arena(reply() + "<relevance>[1]</relevance>").relevance == 0
    assert arena(reply(answer="Korva or Tessel")).accuracy == 0


def test_arena_blank_answer_is_wrong_even_if_the_gold_has_no_token() -> None:
    assert arena(reply(answer=" "), golds=("The The",)).accuracy == 0


def test_arena_accuracy_by_f1_gives_the_bonus_only_for_f1_of_1() -> None:
    partial = arena(reply(answer="Korva Point"), accuracy="f1")
    assert partial.components == pytest.approx(
        {"format": 1, "accuracy": 2 / 3, "relevance": 1, "bonus": 0}
    )
    assert arena(accuracy="f1").total == 13
    swapped = arena(reply(answer="Point Korva"), golds=("Korva Point",), accuracy="f1")
    assert swapped.total == 13
    assert swapped.all_correct is False  # by exact match, even if the reward uses F1


def test_arena_accuracy_by_judge_needs_a_verdict_for_every_answer() -> None:
    text = reply(answer="that lighthouse at Korva")
    assert arena(text, accuracy="judge", judged=True).total == 13
    assert arena(text, accuracy="judge", judged=False).total == 2
    # A missing answer is not judged; if the judge failed, the answer is not counted as wrong.
    assert arena(reply(answer=""), accuracy="judge").accuracy == 0
    with pytest.raises(ValueError, match="Discard the rollout"):
        arena(text, accuracy="judge")


def test_arena_components_outside_the_total_are_still_measured() -> None:
    naive = arena(components=("format", "accuracy"))
    assert naive.components == {"format": 1, "accuracy": 1}
    assert (naive.total, naive.relevance, naive.all_correct) == (2, 1, True)


# R1-Searcher

BLOCK = "\n\n<|begin_of_documents|>\n(1) Orsk: founded by Ilya Brandt.\n<|end_of_documents|>\n\n"
QUERY = "<|begin_of_query|> Orsk founder <|end_of_query|>"


def turn(*texts: str, block: str = BLOCK, cut: bool = False) -> list[Segment]:
    """Returns policy calls with a block of documents between each two."""
    segments = [Segment("policy", texts[0])]
    for text in texts[1:]:
        segments += [Segment("environment", block), Segment("policy", text)]
    segments[-1] = Segment("policy", texts[-1], cut)
    return segments


def r1(
    segments: list[Segment],
    *,
    question: str = "When was he born?",
    golds: tuple[str, ...] = ("1871",),
    **settings: Any,
) -> R1SearcherOutcome:
    return r1_searcher_outcome(segments, question, golds, R1SearcherSettings(**settings))


SERVED = f"<think>I need the founder. {QUERY}"
END = "</think><answer>1871</answer>"


@pytest.mark.parametrize(
    ("segments", "failures"),
    [
        (turn(SERVED, END), ()),
        (turn(SERVED, f"And {QUERY}", f"\n{END}\n"), ()),
        ([Segment("prefill", "<think>"), *turn(f"Hm. {QUERY}", END)], ()),
        ([Segment("prefill", "<think>"), *turn(SERVED, END)], ("sections",)),
        (turn(f"<think></think>{END}"), ("sections",)),
        (turn("<answer>1871</answer><think></think>"), ("sections", "ending")),
        (turn("<think>a<answer>1871</answer></think>"), ("sections", "ending")),
        (turn(f"<think>a{END[:8]} so <answer>1871</answer>"), ("outside",)),
        (turn(f"Well, <think>a{END}"), ("outside",)),
        (turn(f"<think>a{END}<answer>1872</answer>"), ("sections",)),
        (turn("<think>a</think><answer> </answer>"), ("answer",)),
        (turn("<think>a</think><answer>" + "x " * 10 + "</answer>"), ()),
        (turn("<think>a</think><answer>" + "x " * 11 + "</answer>"), ("long-answer",)),
        (turn(SERVED, f"<|begin_of_documents|>{END}"), ("documents",)),
        (turn(f"<think><|end_of_documents|>{END}"), ("documents",)),
        (turn(f"<think>{QUERY}{END}"), ("query",)),  # the environment returned no documents
        (turn(f"<think><|end_of_query|>{END}"), ("query",)),
        (turn(SERVED, f"<|begin_of_query|> again{END}"), ("query",)),
        (turn(f"<think><|begin_of_query|> a {QUERY}", END), ("query",)),
        (turn(f"<think>a</think><answer>{QUERY}</answer>"), ("answer", "query")),
        (turn(SERVED, END, cut=True), ("ending",)),
        (turn(SERVED, "</think>"), ("sections", "ending")),
        (turn(f"<think>\ufffd{END}"), ("unreadable",)),
        (turn(f"<think>\x85{END}"), ("unreadable",)),
        (turn(f"<think>\x7f{END}"), ("unreadable",)),
        (turn(f"<think>\ue000{END}"), ("unreadable",)),
        (turn(f"<think>\U000e0fff{END}"), ("unreadable",)),
        (turn(f"<think>\ud800{END}"), ("unreadable",)),
        (turn(f"<think>東{END}"), ("unreadable",)),
        (turn(f"<think>\t\r\nΩ ß Ж שלום かな 한 \u3400 😀 \u200d{END}"), ()),
        ([], ("sections", "ending")),
    ],
)
def test_r1_format_failures(segments: list[Segment], failures: tuple[str, ...]) -> None:
    assert r1(segments).failures == failures
    assert r1(segments).components["format"] == (0.0 if failures else 0.5)
    assert r1(segments, stage=2).components["format"] == (-2.0 if failures else 0.0)


def test_r1_accepts_ideographs_only_from_the_question_or_the_documents() -> None:
    text = f"<think>東京{END}"
    assert r1(turn(text)).failures == ("unreadable",)
    assert r1(turn(text), question="Where is 東京?").failures == ()
    assert r1(turn(text), question="Where is 東?").failures == ("unreadable",)
    assert r1(turn(SERVED, f"東京{END}", block=BLOCK.replace("Orsk", "東京"))).failures == ()


def test_r1_documents_forged_by_the_policy_do_not_count_as_retrieval() -> None:
    outcome = r1(turn(f"<think>{QUERY}{BLOCK}So 1871.{END}"))
    assert outcome.retrievals == 0
    assert outcome.components == {"retrieval": 0, "format": 0, "answer": None}


def test_r1_limit_of_answer_words_grows_with_the_longest_gold() -> None:
    answer = "<think>a</think><answer>" + "x " * 11 + "</answer>"
    assert r1(turn(answer), golds=("y", "z " * 11)).failures == ()
    assert r1(turn(answer), golds=("y", "z " * 10)).failures == ("long-answer",)
    assert r1(turn(answer), golds=(), max_answer_words=11).failures == ()


@pytest.mark.parametrize(
    ("answer", "golds", "f1", "em", "cover"),
    [
        ("1871", ("1871",), 1, 1, 1),
        ("in 1871", ("1871",), 2 / 3, -1, 1),
        ("1870 or 1871 or 1872", ("1871",), 1 / 3, -1, 1),
        ("Yes.", ("yes",), 1, 1, 1),
        ("yes, no", ("yes",), 0, -1, -1),
        ("party", ("art",), 0, -1, -1),
        (" ", ("The The",), 0, -1, -1),  # a blank answer is wrong, even if the gold has no token
        ("1871", (), 0, -1, -1),
    ],
)
def test_r1_answer_rewards(
    answer: str, golds: tuple[str, ...], f1: float, em: float, cover: float
) -> None:
    segments = turn(f"<think>a</think><answer>{answer}</answer>")
    for name, worth in (("f1", f1), ("em", em), ("cover_em", cover)):
        outcome = r1(segments, golds=golds, stage=2, answer_reward=name)
        assert outcome.components["answer"] == pytest.approx(worth), name


def test_r1_rewards_the_answer_despite_format_failures_but_not_guesses() -> None:
    assert r1(turn("1871: <answer>1871</answer>"), stage=2).total == -1
    twice = turn(f"<think>a{END}<answer>1872</answer>")
    assert r1(twice, stage=2).total == -2
    assert r1(turn("<think>a</think><answer>1871"), stage=2).total == -2


# Eval-RAR, Search-R1, AutoRefine

INFORMATION = (
    "\n\n<information>Doc 1(Title: M. Keller) She died on 22 April 1894.</information>\n\n"
)
CORRECTION = "\nMy action is wrong. Let me try again.\n"
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


def eval_rar(
    segments: list[Segment],
    *,
    golds: tuple[str, ...] = ("22 April 1894",),
    search_tags: SearchTags = EVAL_RAR,
    **settings: Any,
) -> EvalRarOutcome:
    return eval_rar_outcome(segments, golds, EvalRarSettings(**settings), search_tags)


@pytest.mark.parametrize(
    ("segments", "evaluated", "paid", "paid_by_all"),
    [
        (rollout(SEARCH, INFORMATION, GOLD + WRONG), 1, True, True),
        (rollout(SEARCH, INFORMATION, f"<think>{GOLD}</think>{WRONG}"), 1, True, True),
        # Guesses before any documents, and documents forged by the policy.
        (rollout(GOLD + SEARCH, INFORMATION, WRONG), 0, False, True),
        (rollout(INFORMATION.strip() + GOLD + WRONG), 0, False, True),
        # Only the first evaluation after a block counts, even if it is not closed.
        (rollout(SEARCH, INFORMATION, f"<evaluate>a</evaluate>{GOLD}{WRONG}"), 1, False, True),
        (rollout(SEARCH, INFORMATION, f"<evaluate>{GOLD}{WRONG}"), 0, False, True),
        (
            rollout(SEARCH, INFORMATION, f"<evaluate>a<think></evaluate>{GOLD}{WRONG}"),
            0,
            False,
            True,
        ),
        (rollout(SEARCH, INFORMATION, "<evaluate>a", CORRECTION, GOLD + WRONG), 0, False, True),
        (
            rollout(SEARCH, INFORMATION, "<evaluate>22", CORRECTION, f"April</evaluate>{WRONG}"),
            0,
            False,
            False,
        ),
        (rollout(SEARCH, INFORMATION, f"</evaluate>{GOLD}{WRONG}"), 1, True, True),
        # Another evaluation counts after another search, but not after a correction.
        (rollout(SEARCH, INFORMATION, SEARCH, INFORMATION, GOLD + WRONG), 1, True, True),
        (
            rollout(
                SEARCH, INFORMATION, f"<evaluate>a</evaluate>{SEARCH}", INFORMATION, GOLD + WRONG
            ),
            2,
            True,
            True,
        ),
        (
            rollout(SEARCH, INFORMATION, "<evaluate>a</evaluate>", CORRECTION, GOLD + WRONG),
            1,
            False,
            True,
        ),
        (rollout(SEARCH, INFORMATION, "Hm.", CORRECTION, GOLD + WRONG), 1, True, True),
        # Text after the action is dropped.
        (rollout(SEARCH, INFORMATION, WRONG + GOLD), 0, False, False),
        (
            rollout(SEARCH, INFORMATION, "<answer> </answer>" + GOLD, CORRECTION, WRONG),
            0,
            False,
            False,
        ),
        (rollout(SEARCH + GOLD, INFORMATION, WRONG), 0, False, False),
        (rollout(SEARCH, INFORMATION, f"<search>a{GOLD}</search>{WRONG}"), 1, True, True),
    ],
)
def test_eval_rar_counts_and_rewards_evaluations(
    segments: list[Segment], evaluated: int, paid: bool, paid_by_all: bool
) -> None:
    outcome = eval_rar(segments)
    assert outcome.evaluated == evaluated
    assert outcome.total == outcome.components["evaluation"] == (0.1 if paid else 0)
    assert eval_rar(segments, evaluations="all").total == (0.1 if paid_by_all else 0)


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
    assert eval_rar(segments).answer == answer


def test_eval_rar_rewards_the_evaluation_of_a_rollout_without_an_answer() -> None:
    outcome = eval_rar(rollout(SEARCH, INFORMATION, GOLD + SEARCH))
    assert (outcome.answer, outcome.total) == (None, 0.1)


@pytest.mark.parametrize(
    ("evaluation", "golds"),
    [("no", ("no",)), ("It was a party.", ("art",)), ("The The", ("The The",)), ("a", ())],
)
def test_eval_rar_gives_no_reward_for_golds_that_cannot_be_contained(
    evaluation: str, golds: tuple[str, ...]
) -> None:
    segments = rollout(SEARCH, INFORMATION, f"<evaluate>{evaluation}</evaluate>{WRONG}")
    assert eval_rar(segments, golds=golds).total == 0


def test_eval_rar_gives_no_reward_for_a_gold_split_over_two_evaluations() -> None:
    first, second = "<evaluate>22 April</evaluate>", "<evaluate>1894</evaluate>"
    segments = rollout(SEARCH, INFORMATION, first + SEARCH, INFORMATION, second + WRONG)
    assert eval_rar(segments).total == eval_rar(segments, evaluations="all").total == 0


def test_eval_rar_reward_setting_selects_the_components() -> None:
    segments = rollout(SEARCH, INFORMATION, GOLD + WRONG)
    ablation = eval_rar(segments, reward="em")
    assert ablation.components == {"em": 0, "evaluation": None}
    assert (ablation.total, ablation.evaluated) == (0, 1)
    right = rollout(SEARCH, INFORMATION, GOLD + RIGHT)
    assert eval_rar(right).components == {"em": 1, "evaluation": 0.1}
    assert eval_rar(right).total == 1  # not added
    # Search-R1 has no evaluations: their tags are plain text, even within an answer.
    inside = rollout("<answer>a <evaluate></answer>")
    assert eval_rar(inside, search_tags=SEARCH_R1, reward="em").answer == "a <evaluate>"
    assert eval_rar(segments, search_tags=SEARCH_R1, reward="em").evaluated == 0


def test_autorefine_rewards_f1_or_otherwise_the_refinement() -> None:
    block = INFORMATION.replace("information", "documents")

    def worth(answer: str) -> float:
        refined = f"<refine>22 April 1894</refine><answer>{answer}</answer>"
        segments = [*turn(SEARCH, refined, block=block)]
        return eval_rar(segments, search_tags=AUTOREFINE, reward="autorefine").total

    assert worth("April 1894") == pytest.approx(0.8)
    assert (
        worth("April and " + "x " * 40) < 0.1
    )  # a low F1 earns less than a refinement: the paper's rule
    assert worth("Rome") == 0.1


def test_eval_rar_copied_share_and_forged_documents() -> None:
    copied = "<evaluate>She died on 22 April 1894, so it fits.</evaluate>"
    outcome = eval_rar(rollout(SEARCH, INFORMATION, copied + WRONG))
    assert outcome.copied == pytest.approx(6 / 9)
    own = eval_rar(rollout(SEARCH, INFORMATION, "<evaluate>Missing: birth</evaluate>" + WRONG))
    assert own.copied == 0
    assert eval_rar(rollout(SEARCH, INFORMATION, WRONG)).copied is None
    assert eval_rar(rollout(SEARCH, INFORMATION, "<evaluate>!</evaluate>" + WRONG)).copied is None
    # A later block is not the source.
    segments = rollout(f"{copied}{SEARCH}", INFORMATION, WRONG)
    assert eval_rar(segments, evaluations="all").copied == 0
    assert eval_rar(rollout(f"<think>{INFORMATION.strip()}</think>{RIGHT}")).forged == 1


# Properties

PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<search>", "</search>", "<evaluate>"),
    *("</evaluate>", "<information>", "</information>", "<|begin_of_query|>", "<|end_of_query|>"),
    *("<|begin_of_documents|>", "<|end_of_documents|>", "<relevance>", "</relevance>"),
    *("<analysis>", "</analysis>", "[2,4]", "[9]", "[", "1871", "yes", "the", " ", "\n", "<", ">"),
]
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=12)
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), ANY), max_size=12).map("".join)
GOLDS = st.lists(st.one_of(st.sampled_from(["1871", "yes", "The The", "a b"]), ANY), max_size=3)
POLICY = st.builds(Segment, st.just("policy"), TEXT, st.booleans())
OPENING = {"r1": "\n\n<|begin_of_documents|>", "eval-rar": "\n\n<information>"}


def blocks(system: Literal["r1", "eval-rar"]) -> st.SearchStrategy[Segment]:
    return TEXT.map(lambda text: Segment("environment", OPENING[system] + text))


def segments_of(system: Literal["r1", "eval-rar"]) -> st.SearchStrategy[list[Segment]]:
    prefill = st.builds(Segment, st.just("prefill"), TEXT)
    message = st.just(Segment("environment", CORRECTION))
    return st.lists(st.one_of(POLICY, POLICY, blocks(system), message, prefill), max_size=6)


def rewritten(segments: list[Segment], text: str, opening: str) -> list[Segment]:
    """Returns the rollout with its documents replaced by `text`."""
    return [
        Segment("environment", opening + text) if segment.text.startswith(opening) else segment
        for segment in segments
    ]


@given(st.lists(POLICY, max_size=2), GOLDS, st.sets(st.integers(1, 4)), TEXT)
def test_arena_totals_are_valid_and_ignore_inserted_text(
    segments: list[Segment], golds: list[str], supporting: set[int], inserted: str
) -> None:
    settings = ArenaSettings()
    outcome = arena_outcome(segments, golds, settings, reference_count=4, supporting=supporting)
    assert outcome.total in {0, 0.5, 1, 1.5, 2, 2.5, 13}
    if outcome.total == 13:
        assert outcome.all_correct
    beside = [*segments, Segment("environment", inserted), Segment("prefill", inserted)]
    assert outcome == arena_outcome(
        beside, golds, settings, reference_count=4, supporting=supporting
    )


@given(segments_of("r1"), GOLDS, TEXT)
def test_r1_totals_are_valid_and_ignore_the_documents(
    segments: list[Segment], golds: list[str], inserted: str
) -> None:
    first = r1(segments, golds=tuple(golds))
    assert first.total in {0, 0.5, 1}
    assert -2 <= r1(segments, golds=tuple(golds), stage=2).total <= 1
    for reward in ("em", "cover_em"):
        outcome = r1(segments, golds=tuple(golds), stage=2, answer_reward=reward)
        assert outcome.total in {-3, -1, 1}
    # Documents only change which ideographs are accepted.
    plain = "".join(c for c in inserted if not "\u4e00" <= c <= "\u9fff")
    other, none = (rewritten(segments, text, OPENING["r1"]) for text in (plain, ""))
    assert r1(other, golds=tuple(golds)) == r1(none, golds=tuple(golds))


@given(segments_of("eval-rar"), GOLDS, TEXT)
def test_eval_rar_totals_are_valid_and_ignore_the_documents(
    segments: list[Segment], golds: list[str], inserted: str
) -> None:
    outcome = eval_rar(segments, golds=tuple(golds))
    assert outcome.total in {0, 0.1, 1}
    assert outcome.evaluated <= outcome.searches
    assert outcome.copied is None or 0 <= outcome.copied <= 1
    assert eval_rar(segments, golds=tuple(golds), reward="em").total in {0, 1}
    assert 0 <= eval_rar(segments, golds=tuple(golds), reward="autorefine").total <= 1
    other = eval_rar(rewritten(segments, inserted, OPENING["eval-rar"]), golds=tuple(golds))
    assert (other.components, other.answer) == (outcome.components, outcome.answer)
    assert eval_rar(segments, golds=tuple(golds), evaluations="all").total >= outcome.total
