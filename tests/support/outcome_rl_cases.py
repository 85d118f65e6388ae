"""Worked cases of ARENA, R1-Searcher and Eval-RAR: `tests/rewards/cases/outcome_rl.json`.

`expected` holds the parts of the reward, `facts` the expected results of the environment. `finish:
length` marks a call that was cut at the token limit. `gold_documents` are numbers of shown
references for ARENA (`[]`: none shown, null: unknown), and titles for the others. `basis` names the
source of the values: `paper`, `design` or `ours`.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_protocols import agent_settings
from sample_records import a_question
from scripted_engine import ScriptedRetriever, SpellingEngine

from branchwise.agent.environment import Environment, Trajectory
from branchwise.agent.protocols import protocol_of
from branchwise.agent.segments import AUTOREFINE, EVAL_RAR, Segment
from branchwise.agent.settings import AgentSettings
from branchwise.engines.sampling import Sampling
from branchwise.rewards.arena import ArenaSettings, arena_outcome
from branchwise.rewards.eval_rar import EvalRarSettings, eval_rar_outcome
from branchwise.rewards.outcome import Outcome, Verdicts
from branchwise.rewards.r1_searcher import R1SearcherSettings, r1_searcher_outcome
from branchwise.types import Paragraph, Question, RetrievedPassage

BUDGET = ("prefill", "max_retrievals", "max_steps", "max_corrections")
"""Settings of the cases that are not settings of a reward."""

PROTOCOLS = {"autorefine": "autorefine", "no-evaluation": "eval-rar"}
DOCUMENT = re.compile(
    r'(?:\(\d\) (.*?): |Doc \d\(Title: "(.*?)"\) )(.*?)(?:\n|</information>|</documents>)'
)
UNREACHABLE = {"r1-searcher-text_after_answer": "a call ends at </answer>"}
"""Reason why no call of a policy can end like the case, by name of the case."""


@dataclass(frozen=True)
class Case:
    system: str
    name: str
    question: str
    gold_answers: list[str]
    gold_documents: list[Any] | None
    references: list[dict[str, Any]]
    transcript: list[dict[str, str]]
    expected: dict[str, float | None]
    why: str
    basis: str
    settings: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def segments(self) -> list[Segment]:
        prefill = self.settings.get("prefill", "")
        return [
            *([Segment("prefill", prefill)] if prefill else []),
            *(
                Segment(part["role"], part["text"], part.get("finish") == "length")  # type: ignore[arg-type]
                for part in self.transcript
            ),
        ]

    def outcome(self, segments: list[Segment] | None = None) -> tuple[Outcome, Verdicts]:
        given = {name: value for name, value in self.settings.items() if name not in BUDGET}
        segments, golds = segments or self.segments, self.gold_answers
        if self.system == "arena":
            return arena_outcome(
                segments,
                golds,
                ArenaSettings(**given),
                reference_count=len(self.references),
                supporting=self.gold_documents,
            )
        if self.system == "r1-searcher":
            settings = R1SearcherSettings(**given)
            return r1_searcher_outcome(segments, self.question, golds, settings)
        if given["reward"] == "no-evaluation":
            given["reward"] = "em"
        tags = AUTOREFINE if given["reward"] == "autorefine" else EVAL_RAR
        return eval_rar_outcome(segments, golds, EvalRarSettings(**given), tags)


FILE = Path(__file__).parents[1] / "rewards" / "cases" / "outcome_rl.json"
CASES = [Case(**case) for case in json.loads(FILE.read_text())]


def asked(case: Case) -> Question:
    """Returns the question of a case, with its references as paragraphs."""
    paragraphs = tuple(
        Paragraph(title=r["title"], text=r["text"], is_supporting=r["supporting"], id=str(n))
        for n, r in enumerate(case.references, start=1)
    )
    return a_question(
        question=case.question,
        answers=tuple(case.gold_answers),
        paragraphs=paragraphs,
        supporting_ids=(),
    )


def settings_of(case: Case) -> AgentSettings:
    given = {name: value for name, value in case.settings.items() if name in BUDGET}
    protocol = PROTOCOLS.get(case.settings.get("reward", ""), case.system)
    return agent_settings(protocol, **given if protocol == "arena" else {"max_steps": 9, **given})


async def follow(case: Case) -> tuple[Trajectory, Environment]:
    """Replays the case: policy and retriever return the texts of its transcript."""
    texts = [p["text"] + "…" * (p["finish"] == "length") for p in case.transcript if "finish" in p]
    blocks = [p["text"] for p in case.transcript if p["role"] == "environment"]
    served = iter(
        [
            DOCUMENT.findall(block)
            for block in blocks
            if "document" in block.lower() or "<information>" in block
        ]
    )

    def passages(_: str) -> list[RetrievedPassage]:
        return [
            RetrievedPassage(id=one or other, title=one or other, text=text, score=1.0)
            for one, other, text in next(served, [])
        ]

    environment = Environment(
        protocol_of(settings_of(case)), SpellingEngine(texts), ScriptedRetriever(passages), top_k=3
    )
    question = asked(case)
    state = await environment.root(question)
    end = await environment.trajectory(state, Sampling(), question_id="q", path="r")
    return end, environment
