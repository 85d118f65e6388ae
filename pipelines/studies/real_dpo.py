"""`make study STUDY=real-dpo`: the arms of `atlas-dpo` on 2Wiki, HotpotQA and MuSiQue.

One policy for the three sets: a warm start on their parts `warm`, trees over their parts `train`,
and one test, registered here before it was run: all questions of the three parts `test` pooled,
greedy, F16, process DPO against the warm start and against SFT on EM. Figures of a single set and
of the stratum that can be guessed are descriptive. Baselines stand beside: the untrained model on
its own, by one search, and with the gold passages, and the most frequent answer.
"""

from collections.abc import Iterator

from pipelines.studies.arms import Arm, Examined, examined, predictions_of
from pipelines.studies.atlas_dpo import CLAIMS, arms
from pipelines.studies.lab import Lab
from pipelines.studies.report import Stratum, write_report

TEST = {"evaluation.part": "test", "policy.precision": "f16"}
BASELINES = ("majority", "closed-book", "one-shot", "oracle")

STRATA = (
    Stratum("2wiki", lambda row: row.source == "2wiki"),
    Stratum("hotpotqa", lambda row: row.source == "hotpotqa"),
    Stratum("musique", lambda row: row.source == "musique"),
    Stratum("guessable", lambda row: row.guessable is True),
    Stratum("not guessable", lambda row: row.guessable is False),
)

DPO = Arm("dpo", "train-dpo", pairs={}, training={})
"""The recipe that `atlas-dpo` chose on atlas's part `dev`; nothing is chosen here."""


def real_dpo(lab: Lab) -> None:
    """Run the study (see module)."""
    lab.branchwise("warm-start")
    lab.branchwise("annotate")
    beside = list(baselines(lab))
    for done in examined(lab, arms(DPO), TEST):
        write_report(lab, "real-dpo", [*beside, *done], CLAIMS, STRATA)


def baselines(lab: Lab) -> Iterator[Examined]:
    """The untrained model in the protocol, and what no protocol is needed for."""
    asked = lab.branchwise(
        "eval",
        settings={
            **TEST,
            "evaluation.policies": {"base": "packaged"},
            "evaluation.baselines": list(BASELINES),
        },
    )
    for name in ("base", *BASELINES):
        yield Examined(Arm(name), {0: predictions_of(lab, name, asked)})
