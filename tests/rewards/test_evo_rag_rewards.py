"""EVO-RAG's seven rewards: worked examples for each equation of section 3.2."""

import pytest
from evo_world import step
from sample_records import a_question

from branchwise.agent.state import Step
from branchwise.rewards.evo_rag.steps import (
    EpisodeRewards,
    Gold,
    StepContext,
    answer_correctness,
    refusal_reward,
    retrieval_action,
    retrieval_bonus,
    sub_query_overlap,
    sufficient_by_gold,
)
from branchwise.rewards.settings import REWARDS, EvoRagSettings

GOLD = Gold(("Paris",), answerable=True, documents=frozenset({"lyon", "france"}))
UNKNOWN = Gold(("Paris",), answerable=True, documents=None)
UNANSWERABLE = Gold((), answerable=False, documents=None)


def search(query: str, *found: str) -> Step:
    return step("search", query, *found)


BACKTRACK, REFUSE = step("backtrack"), step("refuse")
OTHERS = [BACKTRACK, REFUSE, step("answer", "Paris"), step("invalid")]


def before(*steps: Step) -> StepContext:
    return StepContext.of(steps)


NOTHING = before()


def same(query: str, others: object) -> float:
    return 0.75


def test_step_context_counts_all_steps_but_drops_backtracked_documents() -> None:
    found = before(search("a", "lyon"), search("b", "osaka"), BACKTRACK, search("c"))
    assert found.t == 4, "every policy call counts, BACKTRACK included"
    assert found.queries == ("a", "b", "c"), "queries count even if their search was backtracked"
    assert found.retrieved == {"lyon", "osaka"}
    assert found.context == {"lyon"}


# Retrieval bonus: +1 if D_t ∩ D* ≠ ∅, −1 if it is empty, 0 for other actions.


@pytest.mark.parametrize(
    ("earlier", "found", "novel", "literal"),
    [
        ((), ("lyon", "osaka"), 1.0, 1.0),
        ((), ("osaka",), -1.0, -1.0),
        ((), (), -1.0, -1.0),
        ((search("a", "lyon"),), ("lyon",), 0.0, 1.0),
        ((search("a", "lyon"),), ("lyon", "france"), 1.0, 1.0),
        ((search("a", "lyon"),), ("osaka",), -1.0, -1.0),
        # Documents of a backtracked search still count as found.
        ((search("a", "lyon"), BACKTRACK), ("lyon",), 0.0, 1.0),
    ],
)
def test_retrieval_bonus(
    earlier: tuple[Step, ...], found: tuple[str, ...], novel: float, literal: float
) -> None:
    made, known = search("b", *found), before(*earlier)
    assert retrieval_bonus(made, known, GOLD) == novel
    assert retrieval_bonus(made, known, GOLD, novel=False) == literal


def test_retrieval_bonus_is_none_if_gold_is_unknown_and_0_for_other_actions() -> None:
    half_known = Gold((), answerable=False, documents=frozenset({"lyon"}))
    for gold in (UNKNOWN, UNANSWERABLE, half_known):
        for made in (search("a", "lyon"), search("a")):
            assert retrieval_bonus(made, NOTHING, gold) is None
            literal = retrieval_bonus(made, NOTHING, gold, unanswerable_missed=True)
            assert literal == (-1.0 if gold.answerable is False else None)
    assert [retrieval_bonus(s, NOTHING, g) for s in OTHERS for g in (GOLD, UNKNOWN)] == [0.0] * 8


# Sub-query overlap: −max_{j<t} cos(q_t, q_j).


def test_overlap_is_minus_the_largest_cosine_to_any_earlier_query() -> None:
    cosines = {"a": 0.25, "b": 0.5, "c": -0.5}

    def similarity(query: str, others: object) -> float:
        assert query == "q"
        assert isinstance(others, tuple)
        return max(cosines[other] for other in others)

    def overlap(*earlier: Step) -> float:
        return sub_query_overlap(search("q"), before(*earlier), similarity)

    assert overlap() == 0.0, "the first search overlaps with nothing"
    assert overlap(search("a")) == -0.25
    assert overlap(search("a"), search("b"), BACKTRACK) == -0.5, "backtracked queries are included"
    assert overlap(search("c")) == 0.0
    printed = sub_query_overlap(search("q"), before(search("c")), similarity, negative_earns=True)
    assert printed == 0.5, "the formula in the paper rewards negative cosines"
    for other in OTHERS:
        assert sub_query_overlap(other, before(search("a")), similarity) == 0.0


# Retrieval action penalty: 0 while p(t) < 0.3; then −1[r_dup < 0]; 0 for other actions.


@pytest.mark.parametrize(
    ("p", "overlap", "penalty", "literal"),
    [
        (0.0, -1.0, 0.0, 0.0),
        (0.29, -1.0, 0.0, 0.0),
        (0.3, -1.0, -1.0, -1.0),
        (0.3, -0.8, -1.0, -1.0),
        (0.3, -0.79, 0.0, -1.0),
        (1.0, -0.01, 0.0, -1.0),
        (1.0, 0.5, 0.0, 0.0),
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_retrieval_action(p: float, overlap: float, penalty: float, literal: float) -> None:
    made = search("a")
    assert retrieval_action(made, p, overlap) == penalty
    assert retrieval_action(made, p, overlap, threshold=0.0) == literal
    assert [retrieval_action(other, p, overlap, threshold=0.0) for other in OTHERS] == [0.0] * 4


@pytest.mark.parametrize(("horizon", "last_free"), [(10, 2), (20, 5), (7, 2), (3, 0)])
def test_the_time_of_the_action_penalty_is_0_based_and_counts_every_call(
    horizon: int, last_free: int
) -> None:
    """The penalty starts at call 0.3 T, counted from 0; backtracked searches count as calls."""
    for earlier in ((search("a"),), (search("a"), BACKTRACK)):
        free = []
        for t in range(len(earlier), horizon):
            padded = (*earlier, *[BACKTRACK] * (t - len(earlier)))
            rewards = EpisodeRewards(EvoRagSettings(), horizon, lambda query, others: 1.0).raw(
                (*padded, search("a")), GOLD
            )
            free += [t] if rewards["action"] == 0.0 else []
        assert free == list(range(len(earlier), last_free + 1))


# Refusal: +1 if the evidence is insufficient, −1 if it suffices, 0 for other actions.


def test_refusal_reward_depends_on_the_evidence_and_an_earlier_search() -> None:
    searched = before(search("a", "lyon"))
    verdicts = (False, True, None)
    found = [refusal_reward(REFUSE, searched, sufficient=word) for word in verdicts]
    assert found == [1.0, -1.0, None]
    at_once = [refusal_reward(REFUSE, NOTHING, sufficient=word) for word in verdicts]
    assert at_once == [-1.0, -1.0, -1.0], "refusing before any search is wrong"
    literal = [
        refusal_reward(REFUSE, NOTHING, sufficient=word, early_wrong=False) for word in verdicts
    ]
    assert literal == [1.0, -1.0, None], "in the paper only the verifier decides"
    taken_back = before(search("a", "lyon"), BACKTRACK)
    assert refusal_reward(REFUSE, taken_back, sufficient=False) == 1.0, (
        "a backtracked search counts as a search"
    )
    for other in (search("a"), BACKTRACK, step("answer", "x"), step("invalid")):
        for word in verdicts:
            assert refusal_reward(other, searched, sufficient=word) == 0.0


@pytest.mark.parametrize(
    ("gold", "steps", "sufficient"),
    [
        (GOLD, [search("a", "lyon", "france", "osaka")], True),
        (GOLD, [search("a", "lyon"), search("b", "france")], True),
        (GOLD, [search("a", "lyon")], False),
        (GOLD, [], False),
        (GOLD, [search("a", "lyon"), search("b", "france"), BACKTRACK], False),
        (UNANSWERABLE, [search("a", "lyon", "france")], False),
        (UNKNOWN, [search("a", "lyon", "france")], None),
    ],
)
def test_without_a_verifier_all_gold_documents_in_context_suffice(
    gold: Gold, steps: list[Step], sufficient: bool | None
) -> None:
    assert sufficient_by_gold(before(*steps), gold) is sufficient


def test_the_verdict_overrides_the_gold_and_a_missing_one_gives_no_reward() -> None:
    def refused(gold: Gold, verdict: bool | None, *, verified: bool) -> float | None:
        steps = (search("a", "lyon", "france"), REFUSE)
        rewards = EpisodeRewards(EvoRagSettings(), 10, same, verified)
        return rewards.raw(steps, gold, verdict)["refusal"]

    assert refused(GOLD, None, verified=False) == -1.0
    assert refused(UNANSWERABLE, None, verified=False) == 1.0
    assert refused(UNKNOWN, None, verified=False) is None
    assert [refused(GOLD, word, verified=True) for word in (False, True, None)] == [1.0, -1.0, None]
    assert refused(UNANSWERABLE, True, verified=True) == -1.0


# Answer correctness: ½ (EM + F1).


@pytest.mark.parametrize(
    ("said", "golds", "worth"),
    [
        ("the Paris!", ("Paris",), 1.0),
        ("Paris France", ("Paris",), 1 / 3),  # EM 0; precision 1/2, recall 1: F1 2/3
        ("Rome", ("Paris",), 0.0),
        ("Lutetia", ("Paris", "Lutetia"), 1.0),
        ("yes Paris", ("yes",), 0.0),
        ("Paris", (), 0.0),
    ],
)
def test_answer_correctness(said: str, golds: tuple[str, ...], worth: float) -> None:
    gold = Gold(golds, answerable=True, documents=None)
    assert answer_correctness(step("answer", said), gold) == pytest.approx(worth)
    for kind in ("search", "refuse", "invalid"):
        assert answer_correctness(step(kind, said), gold) == 0.0


def test_every_answer_to_an_unanswerable_question_is_wrong() -> None:
    """Some sources give such a question the answer of its answerable variant."""
    gold = Gold(("Paris",), answerable=False, documents=None)
    assert answer_correctness(step("answer", "Paris"), gold) == 0.0


# All seven rewards of one step.


def test_step_rewards_returns_all_seven_rewards_in_order() -> None:
    earlier = (search("a", "lyon"), search("b", "osaka"), BACKTRACK)
    settings, literal = EvoRagSettings(), EvoRagSettings(
        retrieval_bonus="any", overlap_threshold=0.0, step_value=-2.0
    )  # fmt: skip

    def of(last: Step, settings: EvoRagSettings, horizon: int) -> list[float | None]:
        steps = (*earlier, last)
        rewards = EpisodeRewards(settings, horizon, same).raw(steps, GOLD)
        assert list(rewards) == list(REWARDS)
        return list(rewards.values())

    # In order: retrieval, action, overlap, backtrack, refusal, step, answer; t is 3.
    again = search("a", "lyon")
    assert of(again, settings, 10) == [0.0, 0.0, -0.75, 0.0, 0.0, -1.0, 0.0]
    assert of(again, literal, 10) == [1.0, -1.0, -0.75, 0.0, 0.0, -2.0, 0.0]
    assert of(again, literal, 11) == [1.0, 0.0, -0.75, 0.0, 0.0, -2.0, 0.0]
    assert of(BACKTRACK, settings, 10) == [0.0, 0.0, 0.0, -1.0, 0.0, -1.0, 0.0]
    assert of(step("invalid"), settings, 10) == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0]
    assert of(REFUSE, settings, 10) == [0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.0]
    assert of(step("answer", "Paris"), settings, 10) == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 1.0]


def test_gold_is_read_from_ids_answers_and_answerability_of_the_question() -> None:
    question = a_question(supporting_ids=("lyon", "lyon", "france"), supporting_titles=("Lyon",))
    assert Gold.of(question) == GOLD
    assert Gold.of(a_question(supporting_titles=("Lyon",))) == UNKNOWN
    assert Gold.of(a_question(answers=(), answerable=False)) == UNANSWERABLE
