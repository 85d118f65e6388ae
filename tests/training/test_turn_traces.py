"""Traces of ARENA, R1-Searcher and the search loops: replayed, with full reward."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_protocols import agent_settings
from scripted_engine import SpellingEngine

from branchwise.agent.arena import supporting_numbers
from branchwise.agent.environment import Environment, Trajectory
from branchwise.agent.protocol import AgentProtocol
from branchwise.agent.protocols import protocol_of
from branchwise.agent.search_loop import SearchLoop
from branchwise.agent.segments import policy_text
from branchwise.engines.embedded.openvino import embedded_engine
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.interface import Retriever
from branchwise.retrieval.settings import Bm25Settings
from branchwise.rewards.arena import ArenaSettings, arena_outcome
from branchwise.rewards.eval_rar import EvalRarSettings, eval_rar_outcome
from branchwise.rewards.r1_searcher import R1SearcherSettings, r1_searcher_outcome
from branchwise.runs.recipe_file import load_recipe
from branchwise.sources.atlas import build_corpus, build_questions
from branchwise.training.examples import StepExample, tokenise
from branchwise.training.warm_start.traces import Traces, build_traces
from branchwise.training.warm_start.walks import USELESS
from branchwise.types import Passage, Question
from branchwise.weights.chat_template import prompt_ids
from branchwise.weights.policies import packaged_gguf, tokenizer_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TOP_K, REFERENCES = 2, 5
LOOPS = ("eval-rar", "search-r1", "autorefine")

Atlas = tuple[dict[str, Question], dict[str, Passage], Retriever]


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    corpus = build_corpus(800)
    index = open_retriever(Bm25Settings(), corpus, tmp_path_factory.mktemp("atlas"))
    asked = build_questions("warm", 60, cities=800, references=REFERENCES)
    return {q.id: q for q in asked if q.answerable}, {p.id: p for p in corpus}, index


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizer_of(packaged_gguf())


def protocol(name: str, **settings: Any) -> AgentProtocol:
    return protocol_of(agent_settings(name, **settings))


async def traces_of(atlas: Atlas, by: AgentProtocol, top_k: int = TOP_K) -> Traces:
    questions, corpus, retriever = atlas
    return await build_traces(questions.values(), corpus, by, retriever, 0, top_k)


async def replayed(atlas: Atlas, by: AgentProtocol) -> dict[str, Trajectory]:
    """Replays each trace in the environment and checks that its prompts equal the examples'."""
    questions, _, retriever = atlas
    made = await traces_of(atlas, by)
    assert made.counts["traces"] >= 0.9 * len(questions), made.counts
    steps: dict[str, list[StepExample]] = {}
    for example in made.examples:
        steps.setdefault(example.question_id, []).append(example)
    done = {}
    for name, examples in steps.items():
        engine = SpellingEngine([example.target for example in examples])
        environment = Environment(by, engine, retriever, TOP_K)
        root = await environment.root(questions[name])
        end = await environment.trajectory(root, Sampling(), question_id=name, path="")
        for request, example in zip(engine.asked, examples, strict=True):
            parts = [
                p if isinstance(p, str) else "".join(map(chr, p)) for p in request.prefix or ()
            ]
            turn = example.messages[len(request.messages) :]
            assert [m.content for m in turn] == parts
            assert example.messages[: -len(turn) or None] == request.messages
        assert (end.stop_reason, end.state.answer) == ("answer", questions[name].answers[0])
        done[name] = end
    return done


@pytest.mark.parametrize("references", ["given", "retrieved"])
async def test_an_arena_reply_cites_all_supporting_references(
    atlas: Atlas, references: str
) -> None:
    by, questions = protocol("arena", references=references), atlas[0]
    if references == "retrieved":  # one search suffices for one hop only
        questions = {name: q for name, q in questions.items() if q.type == "single"}
    done = await replayed((questions, *atlas[1:]), by)
    for name, end in done.items():
        question = questions[name]
        outcome, verdicts = arena_outcome(
            by.segments(end.state),
            question.answers,
            ArenaSettings(),
            reference_count=len(end.state.given or ()),
            supporting=supporting_numbers(question, end.state),
        )
        assert outcome.total == 13 and verdicts.all_correct


@pytest.mark.parametrize("prompt", ["base", "instruct"])
async def test_r1_searcher_traces_are_well_formed_with_some_useless_searches(
    atlas: Atlas, prompt: str
) -> None:
    by, useless = protocol("r1-searcher", prompt=prompt), Counter[bool]()
    for name, end in (await replayed(atlas, by)).items():
        question, segments = atlas[0][name], by.segments(end.state)
        paid = [
            r1_searcher_outcome(
                segments, question.question, question.answers, R1SearcherSettings(stage=stage)
            )
            for stage in (1, 2)
        ]
        assert [(v.format_failures, o.total) for o, v in paid] == [((), 1.0), ((), 1.0)]
        useless[USELESS in policy_text(segments)] += 1
    assert 0.05 < useless[True] / useless.total() < 0.5


@pytest.mark.parametrize("name", ["evo-rag", "r1-searcher"])
async def test_gold_passages_that_are_cited_by_id_alone_are_no_wrong_leads(
    atlas: Atlas, name: str
) -> None:
    questions, corpus, retriever = atlas
    by_id = {
        name: question.model_copy(update={"supporting_titles": ()})
        for name, question in questions.items()
    }
    by = protocol(name, max_steps=10)
    titled = await traces_of(atlas, by)
    untitled = await traces_of((by_id, corpus, retriever), by)
    assert untitled.examples == titled.examples
    assert any("searches: " in counted for counted in untitled.counts)


@pytest.mark.parametrize("name", LOOPS)
async def test_search_loop_traces_evaluate_every_search_and_get_full_reward(
    atlas: Atlas, name: str
) -> None:
    by = protocol(name, max_steps=5)
    assert isinstance(by, SearchLoop)
    rewards = EvalRarSettings(reward="autorefine" if name == "autorefine" else "eval-rar")
    for question_id, end in (await replayed(atlas, by)).items():
        question, segments = atlas[0][question_id], by.segments(end.state)
        outcome, verdicts = eval_rar_outcome(segments, question.answers, rewards, by.search_tags)
        assert outcome.total == 1.0 and not verdicts.forged
        assert verdicts.retrievals == len(end.state.steps) - 1 >= (question.hops or 0)
        assert verdicts.evaluated == (None if name == "search-r1" else 1.0)
        if name != "search-r1" and question.type != "comparison":
            assert max(value or 0 for value in list(outcome.components.values())[1:]) == 0.1


async def test_questions_that_lack_a_reference_or_steps_are_skipped(atlas: Atlas) -> None:
    questions, corpus, retriever = atlas
    two_hops = next(q for q in questions.values() if q.hops == 2)
    one = two_hops.model_copy(update={"paragraphs": two_hops.paragraphs[:1]})
    made = await build_traces([one], corpus, protocol("arena"), retriever, 0, TOP_K)
    assert made.skipped == {"a supporting passage is not among the references": 1}
    short = protocol("eval-rar", max_steps=2)
    made = await build_traces([two_hops], corpus, short, retriever, 0, TOP_K)
    assert made.skipped["longer than max_steps"] == 1


@pytest.mark.parametrize("name", ["arena", "r1-searcher", "eval-rar", "search-r1"])
async def test_traces_of_a_recipe_fit_its_limits(atlas: Atlas, tokenizer: Any, name: str) -> None:
    recipe = load_recipe(CONFIGS / f"{name}.yaml")
    by = protocol_of(recipe.agent)
    made = await traces_of(atlas, by, recipe.retrieval.top_k)
    tokens = tokenise(made.examples, tokenizer, by.stops)
    assert max(len(one.whole) for one in tokens) <= recipe.training.warm_start.max_length
    assert max(len(one.step) for one in tokens) <= recipe.policy.max_new_tokens


@pytest.mark.model
async def test_training_prompts_have_the_token_ids_of_the_engines_prompts(
    atlas: Atlas, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    protocols = map(protocol, ("arena", "r1-searcher", *LOOPS))
    made = [await traces_of(atlas, by) for by in protocols]
    asked = {"sampling": Sampling(), "identity": CallIdentity("policy", "q", "r")}
    async with embedded_engine(ModelSettings(model="packaged")) as engine:
        for example in (one for traces in made for one in traces.examples[:20]):
            turn = tuple(m.content for m in example.messages if m.role == "assistant")
            messages = example.messages[: len(example.messages) - len(turn)]
            request = SampleRequest(messages, prefix=turn or None, **asked)  # type: ignore[arg-type]
            assert tuple(engine.prompt_ids(request)) == prompt_ids(example.messages, tokenizer)
