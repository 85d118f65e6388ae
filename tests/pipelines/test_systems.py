"""Every system in the same stages, including a system that the test registers.

The policy is an endpoint that continues token ids, as vLLM does.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import branchwise
from fake_endpoint import FakeEndpoint
from loopback import serving
from registered import registered
from tiny_dataset import PASSAGES, QUESTIONS, recipe

from branchwise.agent.protocol import PROTOCOLS, AgentProtocol
from branchwise.agent.state import Action, State
from branchwise.agent.tags import parse_tag
from branchwise.rewards.outcome import Label, Outcome
from branchwise.rewards.scheme import SCHEMES, RewardScheme
from branchwise.rewards.settings import SchemeSettings
from branchwise.storage.parts import read_parts
from branchwise.types import Message, Question

ANSWERS = ("Paris", "Tokyo", "Yen")


def read(request: dict[str, Any]) -> str:
    """Returns the prompt of a call as text."""
    if "messages" in request:
        return "\n".join(message["content"] for message in request["messages"])
    return bytes(request["prompt"]).decode()


def begun(request: dict[str, Any]) -> str:
    return read(request).rpartition("[assistant]")[2]


def looping(documents: str, note: str) -> Callable[[dict[str, Any]], str]:
    """Returns a policy that searches once, notes the result, answers, and sometimes fails."""

    def policy(request: dict[str, Any]) -> str:
        seed, turn = int(request["seed"]), begun(request)
        answer = f"<answer>{ANSWERS[seed % 3]}</answer>"
        if seed % 7 == 0:
            return "I am lost."
        if documents in turn:
            return (f"<{note}>It says {ANSWERS[seed % 2]}.</{note}>\n" if note else "") + answer
        return f"<think>hm</think>\n<search>{('Lyon', 'Osaka', 'Japan')[seed % 3]}</search>"

    return policy


def thinking(request: dict[str, Any]) -> str:
    seed = int(request["seed"])
    if "<|begin_of_documents|>" in begun(request):
        return f" so.</think>\n<answer>{ANSWERS[seed % 3]}</answer>"
    query = ("Lyon", "Osaka", "Japan")[seed % 3]
    return f"I look. <|begin_of_query|> {query} <|end_of_query|>"


def citing(request: dict[str, Any]) -> str:
    seed = int(request["seed"])
    cited = ("[1]", "[2]", "[1,2]", "none")[seed % 4]
    return (
        f"<relevance>{cited}</relevance>\n<analysis>It says so.</analysis>\n"
        f"<answer>{ANSWERS[seed % 3]}</answer>"
    )


class Guessing(AgentProtocol):
    """Protocol that the test registers: one guess."""

    name = "guessing"
    prompts = {"system": "Guess."}  # noqa: RUF012

    def messages(self, state: State, *, last: bool) -> tuple[Message, ...]:
        return (Message("system", self.prompts["system"]), Message("user", state.question))

    def parse(self, state: State, text: str, *, last: bool) -> Action:
        return parse_tag(text, ("answer",))

    def render(self, action: Action) -> str:
        return f"<answer>{action.content}</answer>"


class LengthSettings(SchemeSettings):
    """Settings of the reward scheme that the test registers.

    Attributes:
        most: Longest answer that earns anything, in characters.
    """

    scheme: str = "length"
    most: int = 4


class Length(RewardScheme):
    """Reward scheme that the test registers: short answers are right."""

    name = "length"
    settings_class = LengthSettings
    settings: LengthSettings

    def describe(self) -> str:
        return f"answers of at most {self.settings.most} characters"

    def outcome(self, state: State, question: Question) -> Outcome:
        return Outcome(float(len(state.answer or "") <= self.settings.most))

    def labels(self, question: Question, nodes: Any, states: Any) -> list[Label]:
        return [
            Label(self.outcome(state, question).total if state.steps else None, 1)
            for state in states
        ]


def guess(request: dict[str, Any]) -> str:
    return f"<answer>{ANSWERS[int(request['seed']) % 3]}</answer>"


LOOP = {"max_steps": 4}
SYSTEMS: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "arena": ({}, {"scheme": "arena"}, citing),
    "r1-searcher": ({"max_steps": 4}, {"scheme": "r1-searcher", "stage": 2}, thinking),
    "eval-rar": (LOOP, {"scheme": "eval-rar"}, looping("<information>", "evaluate")),
    "search-r1": (LOOP, {"scheme": "eval-rar", "reward": "em"}, looping("<information>", "")),
    "autorefine": (
        LOOP,
        {"scheme": "eval-rar", "reward": "autorefine"},
        looping("<documents>", "refine"),
    ),
    "guessing": ({}, {"scheme": "length", "most": 4}, guess),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    registered(monkeypatch, PROTOCOLS, "guessing", Guessing)
    registered(monkeypatch, SCHEMES, "length", Length)
    return str(request.param)


@pytest.fixture
def endpoint(system: str) -> Iterator[FakeEndpoint]:
    with serving(SYSTEMS[system][2]) as served:
        yield served


@pytest.fixture
def config(system: str, tmp_path: Path, endpoint: FakeEndpoint, own_cache: None) -> Path:
    agent, rewards, _ = SYSTEMS[system]
    questions = {"source": "jsonl", "questions": str(tmp_path / "questions.jsonl"), "split": None}
    path = recipe(
        tmp_path,
        endpoint.base_url,
        agent={"protocol": system, **agent},
        rewards=rewards,
        mcts={"kind": "chains", "iterations": 6},
        evaluation={"policies": {"one": "policy"}, "set": questions},
    )
    paragraphs = [
        {"title": p["title"], "text": p["text"], "is_supporting": p["id"] == "france"}
        for p in PASSAGES[:2]
    ]
    lines = [json.dumps({**question, "paragraphs": paragraphs}) for question in QUESTIONS]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    return path


def test_each_system_can_be_annotated_relabelled_and_evaluated(
    system: str, tmp_path: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    run = tmp_path / "run"
    assert branchwise("annotate", config, run) == 0
    made = len(endpoint.requests)
    trees = read_parts(run, "trees").to_pylist()
    pairs = read_parts(run, "pairs").to_pylist()
    assert len({row["question_id"] for row in trees}) == len(QUESTIONS)
    assert pairs, "no pairs to train on"
    assert all(pair["chosen_reward"] > pair["rejected_reward"] for pair in pairs)
    assert branchwise("annotate", config, run) == 0
    assert branchwise("relabel", config, run, "--label", "same") == 0
    assert len(endpoint.requests) == made, "neither a rerun nor a relabelling makes calls"
    again = read_parts(run, "relabelled/same/pairs").to_pylist()
    key = "pair_id"
    assert {p[key]: p["reward_gap"] for p in again} == {p[key]: p["reward_gap"] for p in pairs}
    if PROTOCOLS[system].continues:
        assert all("prompt" in request for request in endpoint.requests)
        assert all(row["token_ids"] for row in trees if row["parent_id"] >= 0)
        turn = pairs[0]["prompt"][-1]
        assert {p["prompt"][-1]["role"] for p in pairs if p["depth"] > 1} <= {"assistant"}, turn
    fresh = tmp_path / "fresh"
    assert branchwise("eval", config, fresh) == 0
    (folder,) = (fresh / "eval" / "one").iterdir()
    rows = read_parts(fresh, f"eval/one/{folder.name}/predictions").to_pylist()
    assert len(rows) == len(QUESTIONS) and all(row["em"] is not None for row in rows)
    verdicts = {
        "arena": "relevance",
        "r1-searcher": "retrievals",
        "eval-rar": "corrections",
        "search-r1": "corrections",
        "autorefine": "corrections",
        "guessing": "format_ok",
    }
    assert all(row[verdicts[system]] is not None for row in rows)


def test_a_server_without_token_ids_is_refused_before_any_call(
    tmp_path: Path, own_cache: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(thinking, owned_by="somebody") as served:
        path = recipe(
            tmp_path,
            served.base_url,
            agent={"protocol": "search-r1"},
            mcts={"kind": "chains", "iterations": 2},
        )
        assert branchwise("annotate", path, tmp_path / "run") != 0
        assert not served.requests
    assert "token ids" in capsys.readouterr().out
