"""Worked cases of ARENA, R1-Searcher and Eval-RAR: `tests/rewards/cases/outcome_rl.json`.

`expected` holds the parts of the reward, `facts` what the environment must have done. `finish:
length` marks a call that was cut at the token limit. `gold_documents` are numbers of shown
references for ARENA (`[]`: none shown, null: unknown), titles elsewhere. `basis` says what the
values rest on: `paper`, `design` or `ours`.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.segments import AUTOREFINE, EVAL_RAR, Segment
from rewards.arena import ArenaOutcome, ArenaSettings, arena_outcome
from rewards.eval_rar import EvalRarOutcome, EvalRarSettings, eval_rar_outcome
from rewards.r1_searcher import R1SearcherOutcome, R1SearcherSettings, r1_searcher_outcome

Outcome = ArenaOutcome | R1SearcherOutcome | EvalRarOutcome

PROTOCOL = ("prefill", "max_retrievals", "max_steps", "max_corrections")
"""Settings of the cases that no reward has."""


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

    def outcome(self, segments: list[Segment] | None = None) -> Outcome:
        given = {name: value for name, value in self.settings.items() if name not in PROTOCOL}
        segments, golds = segments or self.segments, self.gold_answers
        if self.system == "arena":
            return arena_outcome(
                segments,
                golds,
                ArenaSettings(**given),
                shown=len(self.references),
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
