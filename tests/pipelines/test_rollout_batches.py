"""Batches of rollouts for outcome RL, with a scripted engine and a scripted retriever."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sample_records import a_question
from scripted_engine import ScriptedRetriever, SpellingEngine, spelt

from branchwise.agent.search_loop import CORRECTION
from branchwise.base.errors import BudgetExceeded, EndpointError, RetrievalError, TrainingError
from branchwise.engines.sampling import Capabilities, SampleRequest
from branchwise.pipelines.train_grpo.generated_rollouts import Rollouts
from branchwise.pipelines.train_grpo.planned_trainings import rollout_recipe
from branchwise.retrieval import Retriever
from branchwise.runs.prepared import Prepared
from branchwise.runs.recipe import Recipe
from branchwise.runs.stage import Gate, StageContext
from branchwise.runs.terminal import Terminal
from branchwise.sources import Data
from branchwise.storage.ledger import Ledger
from branchwise.training.grpo.canary import CanaryResult
from branchwise.training.grpo.rollouts import RolloutBatch
from branchwise.types import Question, RetrievedPassage

QUESTIONS = tuple(
    a_question(id=f"q{n}", question=f"What is {n}?", answers=("Paris",)) for n in range(6)
)
RIGHT, WRONG = "<answer>Paris</answer>", "<answer>Rome</answer>"
Reply = Callable[[SampleRequest], Any]


def half_right(request: SampleRequest) -> str:
    """Answers in the first call; every other draw is right, so each group has spread."""
    return WRONG if request.identity.draw % 2 else RIGHT


def call_number(request: SampleRequest) -> int:
    """Returns the number of a call within its rollout, from 0."""
    return int(request.identity.path.rpartition("+")[2])


def finding(query: str) -> list[RetrievedPassage]:
    return [RetrievedPassage(id="p", title="T", text=f"about {query}", score=1.0)]


@dataclass
class Silent:
    """Canary that accepts every engine."""

    async def check(self, engine: Any, model: Any) -> CanaryResult:
        return CanaryResult(0.01, None)


@dataclass(frozen=True, kw_only=True)
class WithRetriever(Prepared):
    retriever: Retriever


@dataclass
class World:
    """A source of rollouts; its parts may be changed between batches."""

    folder: Path
    engine: SpellingEngine
    recipe: Recipe
    ledger: Ledger
    retriever: ScriptedRetriever = field(default_factory=lambda: ScriptedRetriever(finding))
    questions: tuple[Question, ...] = QUESTIONS
    dev: tuple[Question, ...] = ()
    gate: Gate | None = None
    said: StringIO = field(default_factory=StringIO)

    @asynccontextmanager
    async def serve(self, model: Any) -> AsyncIterator[SpellingEngine]:
        yield self.engine

    async def close(self) -> None:
        pass

    def collect(self, number: int = 0) -> RolloutBatch:
        call = StageContext(self.recipe, self.folder, console=Terminal(self.said))
        recipe = rollout_recipe(call)
        source = Rollouts(
            WithRetriever(call, recipe, Data((), (), {}), {}, retriever=self.retriever),
            recipe,
            self.questions,
            self.dev,
            self.ledger,
            self.gate or Gate(recipe.limits, self.ledger.totals),
            self,
            Silent(),  # type: ignore[arg-type]
        )
        with source:
            return source.collect(number, None)

    def asked(self) -> list[tuple[str, str, int]]:
        """Returns (question, path, draw) of the calls since the last call, and clears them."""
        asked = [one.identity for one in self.engine.asked]
        self.engine.asked.clear()
        return [(one.question_id, one.path, one.draw) for one in asked]

    def keys(self) -> list[str]:
        with closing(sqlite3.connect(self.ledger.path)) as calls:
            return [key for (key,) in calls.execute("SELECT key FROM calls WHERE error IS NULL")]


Make = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Make]:
    """Factory of a `World` with two questions per batch and four rollouts each."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:

        def make(reply: Reply = half_right, agent: Any = None, **grpo: Any) -> World:
            fields = {"batch_questions": 2, "group_size": 4, **grpo}
            recipe = Recipe.model_validate(
                {
                    "name": "little",
                    "seed": 3,
                    "data": {"source": "atlas"},
                    "agent": {"protocol": "eval-rar", "max_steps": 3, **(agent or {})},
                    "policy": {"temperature": 1.0},
                    "rewards": {"scheme": "spre" if agent else "eval-rar"},
                    "training": {"grpo": fields},
                    "limits": {"max_failed_share": 1.0},
                }
            )
            capabilities = Capabilities(structured_output=True, token_ids=True)
            engine = SpellingEngine(reply, capabilities=capabilities)
            return World(tmp_path, engine, recipe, ledger)

        yield make


def rewards(batch: RolloutBatch) -> list[list[float]]:
    return [[rollout.reward for rollout in group] for group in batch.groups]


def test_a_failed_call_drops_only_its_own_rollout(world: Make) -> None:
    def failing(request: SampleRequest) -> str:
        if request.identity.draw == 1:
            raise EndpointError("timed out")
        return RIGHT

    batch = world(failing).collect()
    assert rewards(batch) == [[1.0] * 3, [1.0] * 3], (
        "a failed rollout should not count as a reward of 0"
    )
    assert (batch.metrics.lost["EndpointError"], batch.metrics.rollouts) == (2, 6)
    assert batch.metrics.silent_share == 1.0


def test_a_failed_search_drops_only_its_own_rollout(world: Make) -> None:
    def searching(request: SampleRequest) -> str:
        return f"<search>{request.identity.draw}</search>" if request.prefix is None else RIGHT

    def shelf(query: str) -> list[RetrievedPassage]:
        if query == "2":
            raise RetrievalError("the server is gone")
        return finding(query)

    made = world(searching)
    made.retriever = ScriptedRetriever(shelf)
    batch = made.collect()
    assert rewards(batch) == [[1.0] * 3, [1.0] * 3]
    assert batch.metrics.lost["RetrievalError"] == 2


def test_a_batch_that_lost_too_many_rollouts_raises_and_can_resume(world: Make) -> None:
    """Otherwise, the remaining rollouts, all without a search, would teach not to search."""

    def searching(request: SampleRequest) -> str:
        searches = request.identity.draw < 2 and request.prefix is None
        return "<search>Lyon</search>" if searches else RIGHT

    def gone(query: str) -> list[RetrievedPassage]:
        raise RetrievalError("the search server is gone")

    made = world(searching)
    limits = made.recipe.limits.model_copy(update={"max_failed_share": 0.25})
    made.recipe = made.recipe.model_copy(update={"limits": limits})
    made.retriever = ScriptedRetriever(gone)
    with pytest.raises(TrainingError, match=r"4 of 8 .*RetrievalError 4.*server is gone.*rerun"):
        made.collect()
    made.asked()
    made.retriever = ScriptedRetriever(finding)
    assert rewards(made.collect()) == [[1.0] * 4, [1.0] * 4]
    assert len(made.asked()) == 4, "stored calls should be replayed"


def test_a_group_without_any_rollouts_is_dropped(world: Make) -> None:
    def failing(request: SampleRequest) -> str:
        raise EndpointError("timed out")

    batch = world(failing).collect()
    assert list(batch.groups) == []
    assert (batch.metrics.rollouts, batch.metrics.lost["EndpointError"]) == (0, 8)


def test_a_fatal_error_stops_the_batch(world: Make) -> None:
    def refusing(request: SampleRequest) -> str:
        raise EndpointError("no such model", fatal=True)

    with pytest.raises(EndpointError, match="no such model"):
        world(refusing).collect()


@pytest.mark.parametrize(
    ("silent", "expected"),
    [((), 2), ((0,), 3), ((2,), 2), ((0, 2), 4), ((0, 1, 3), 5), (range(6), 6)],
)
def test_dynamic_sampling_draws_more_questions_for_groups_without_spread(
    silent: Any, expected: int, world: Make
) -> None:
    """A batch needs two groups with spread and may draw six questions, some without spread."""
    made = world(lambda _: RIGHT, dynamic_sampling=4)
    made.collect()
    order = first_draws(made)
    assert len(order) == 6, "no question has spread, so all should be drawn"
    quiet = {order[place] for place in silent}

    def some(request: SampleRequest) -> str:
        return RIGHT if request.identity.question_id in quiet else half_right(request)

    made.engine.texts, made.engine.digest = some, "other weights"
    batch = made.collect()
    assert first_draws(made) == order[:expected]
    assert [group[0].question_id for group in batch.groups] == order[:expected]
    share = len(quiet & set(order[:expected])) / expected
    assert batch.metrics.silent_share == pytest.approx(share)


def first_draws(world: World) -> list[str]:
    return [question for question, _, draw in world.asked() if draw == 0]


def test_the_questions_of_a_batch_depend_only_on_its_number(world: Make) -> None:
    made = world()

    def asked(number: int) -> list[str]:
        made.collect(number)
        return first_draws(made)

    batches = [asked(number) for number in range(6)]
    one, other = ([q for batch in turn for q in batch] for turn in (batches[:3], batches[3:]))
    assert sorted(one) == sorted(other) == [q.id for q in QUESTIONS], (
        "each question should be drawn once per epoch"
    )
    assert one != other, "epochs should differ in their order"
    made.engine.digest = "other weights"
    for number in (4, 0, 1):
        assert asked(number) == batches[number]


def test_rollouts_never_share_a_call(world: Make) -> None:
    """Covers batches with equal weights, and a question that is in one batch twice."""
    made = world(batch_questions=4)
    made.questions = QUESTIONS[:3]
    for number in range(3):
        batch = made.collect(number)
        assert [len(group) for group in batch.groups] == [4] * 4
    asked = made.asked()
    assert len(asked) == len(set(asked)) == len(made.keys()) == 3 * 4 * 4


def test_the_rollouts_of_a_group_are_in_the_order_of_their_draws(world: Make) -> None:
    """The order must not depend on timing, because sums of floats, and so weights, do on it."""
    done: dict[tuple[str, int], asyncio.Event] = {}

    async def last_first(request: SampleRequest) -> str:
        own = (request.identity.question_id, request.identity.draw)
        done.setdefault(own, asyncio.Event())
        if own[1] < 3:
            await done.setdefault((own[0], own[1] + 1), asyncio.Event()).wait()
        done[own].set()
        return f"{own[1]} {RIGHT}"

    for group in world(last_first).collect().groups:
        said = [rollout.calls[0].tokens.step[0] for rollout in group]
        assert said == [ord(str(draw)) for draw in range(4)]


def test_calls_made_before_a_limit_are_replayed_from_the_ledger(world: Make) -> None:
    whole = world().collect()
    made = world()
    made.engine.digest = "other weights"

    class Closing(Gate):
        left = 3

        def check(self) -> None:
            self.left -= 1
            if self.left < 0:
                self.reason = "limits.max_tokens reached"
                raise BudgetExceeded(self.reason)

    made.gate = Closing(made.recipe.limits)
    with pytest.raises(BudgetExceeded, match="max_tokens"):
        made.collect()
    assert len(made.asked()) == 3, "the gate admits three calls"
    made.gate = None
    assert rewards(made.collect()) == rewards(whole)
    assert len(made.asked()) == 8 - 3
    again = made.collect()
    assert made.asked() == [], "a batch in the ledger should make no calls"
    assert [[one.calls for one in group] for group in again.groups] == [
        [one.calls for one in group] for group in whole.groups
    ]


def test_rollouts_do_not_use_structured_output(world: Make) -> None:
    made = world(lambda _: RIGHT, agent={"protocol": "reasonrag"})
    made.collect()
    assert made.engine.asked
    assert all(request.structure is None and request.tokens for request in made.engine.asked)


def test_dev_is_answered_greedily_every_eval_every_batches_without_training(world: Make) -> None:
    made = world(eval_every=2)
    made.dev = tuple(a_question(id=f"dev{n}", question="Dev?") for n in range(3))

    def answering(request: SampleRequest) -> str:
        if request.identity.question_id == "dev1":
            raise EndpointError("timed out")
        return WRONG if request.identity.question_id == "dev2" else half_right(request)

    made.engine.texts = answering
    for number, is_due in ((0, True), (1, False), (2, True)):
        made.engine.digest = f"weights {number}"
        made.engine.asked.clear()
        batch = made.collect(number)
        dev = [one for one in made.engine.asked if one.identity.question_id.startswith("dev")]
        assert len(dev) == 3 * is_due
        assert all(one.sampling.temperature == 0 for one in dev)
        others = [one for one in made.engine.asked if one not in dev]
        assert len(others) == 8 and all(one.sampling.temperature == 1 for one in others)
        assert batch.metrics.dev_em == (0.5 if is_due else None)
        assert batch.metrics.dev_lost == (1 if is_due else None)
        assert {one.question_id for group in batch.groups for one in group} <= {
            question.id for question in QUESTIONS
        }
        assert batch.metrics.rollouts == 8


SCRIPT = {
    0: ["<search>Lyon</search>", "<evaluate>about Lyon</evaluate> <answer>Paris</answer>"],
    1: ["<search>Lyon</search>", "<search>lyon!</search>", "<evaluate>by me</evaluate> Hm…"],
    2: ["<search>Lyon</search>", "<search>Osaka</search>", "<search>Kyoto</search>"],
    3: ["no action", RIGHT],
}
"""Replies per draw, at most three: 0 is right; 1 repeats a search and gives no answer; 2 has no
call left after the third search; 3 corrects an invalid action."""


def test_metrics_of_a_worked_example(world: Make) -> None:
    made = world(lambda one: SCRIPT[one.identity.draw][call_number(one)], batch_questions=1)
    measured = made.collect().metrics.line()
    expected = {
        "rollouts": 4,
        "reward": 2 / 4,
        "reward/em": 2 / 4,
        "reward/evaluation": 0,
        "em": 2 / 4,
        "f1": 2 / 4,
        "answer_rate": 2 / 4,
        "format_ok": 2 / 4,
        "calls": (2 + 3 + 3 + 2) / 4,
        "retrievals": (1 + 2 + 2 + 0) / 4,  # searches that returned passages
        "valid_searches": (1 + 1 + 2 + 0) / 4,
        "copied": (1 + 0) / 2,  # of the two rollouts with an evaluation
        "end/answer": 2 / 4,
        "end/budget": 2 / 4,
        "silent_share": 0,
        "canary_error": 0.01,
    }
    assert {name: measured[name] for name in expected} == pytest.approx(expected)
    sampled = [sum(map(len, SCRIPT[draw])) for draw in range(4)]
    sampled[1] -= 1  # the ellipsis marks a truncation and is not a token
    sampled[3] += 1  # the end-of-turn token of the call that stopped by itself
    assert measured["policy_tokens"] == sum(sampled) / 4
    assert not [name for name in measured if name.startswith(("lost", "dev"))]


def test_token_rows_of_a_continued_turn_match_the_engine(world: Make) -> None:
    texts = SCRIPT[3]
    made = world(lambda one: texts[call_number(one)], batch_questions=1, group_size=2)
    (group,) = made.collect().groups
    for rollout in group:
        first, second = rollout.calls
        # The end-of-turn token was sampled, so it is trained on; the next prompt omits it.
        assert first.tokens.step == (*spelt("no action"), 0)
        assert second.tokens.prompt == (
            *first.tokens.prompt,
            *spelt("no action"),
            *spelt(CORRECTION),
        )
        assert second.tokens.step == spelt(RIGHT)
        assert [call.logprobs for call in rollout.calls] == [
            (-0.5,) * len(call.tokens.step) for call in rollout.calls
        ]


def test_token_rows_of_rewritten_prompts_match_the_engine(world: Make) -> None:
    texts = ("<query>Lyon</query>", "<evidence>E</evidence>", RIGHT)
    made = world(
        lambda one: texts[call_number(one)],
        agent={"protocol": "reasonrag", "max_steps": 6},
        batch_questions=1,
        group_size=2,
    )
    (group,) = made.collect().groups
    read = {
        (one.identity.draw, call_number(one)): spelt("".join(m.content for m in one.messages))
        for one in made.engine.asked
    }
    assert len(set(read.values())) == 3, "every call should have its own prompt"
    for draw, rollout in enumerate(group):
        assert [call.tokens for call in rollout.calls] == [
            (read[draw, place], (*spelt(text), 0)) for place, text in enumerate(texts)
        ]
