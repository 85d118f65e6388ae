"""What do the answers of a study that ran on several machines say together?

    python -m benchmarks.pooled_answers supervision a/study b/study

Reads `supervision-answers.csv` in these folders. Prints EM and F1 of every arm with its seeds, and
the study's claims over all of them. With `supervision-costs-by-seed.csv`, it also prints the mean
costs and plots EM against them (`--plot`).
"""

import argparse
import csv
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from branchwise.analysis.comparison import Scored
from branchwise.base.errors import ConfigError
from branchwise.base.sheet import NONE, Sheet, percent
from branchwise.pipelines.study.stage import STUDIES
from branchwise.studies import supervision
from branchwise.studies.arms import EvaluatedArm
from branchwise.studies.study_tables import (
    ANSWER_HEAD,
    claim_sheet,
    findings,
    known_mean,
    minimum_detectable_effect,
)
from branchwise.types import FailedPrediction

POOLED = ("arena", "eval-rar", "supervision")
"""Studies whose arms are known before they run."""


def read_answers(path: Path) -> dict[tuple[str, int], list[Scored]]:
    """Returns the scores in a study's table of answers, by arm and seed.

    Raises:
        ConfigError: If the file is not such a table.
    """
    found: dict[tuple[str, int], list[Scored]] = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != ANSWER_HEAD:
            raise ConfigError(f"{path}: the columns of a study's answers are {ANSWER_HEAD}")
        for line in lines:
            seed, em, f1 = int(line["seed"]), float(line["em"]), float(line["f1"])
            row = FailedPrediction(line["question"], line["source"], None, seed, em, f1, None)
            found.setdefault((line["arm"], seed), []).append(row)
    return found


def pooled(arms: Sequence[Any], paths: Iterable[Path]) -> list[EvaluatedArm]:
    """Returns the arms with the answers of all files.

    Raises:
        ConfigError: If the study lacks an arm, or two files have one seed of a trained arm.
    """
    done = {arm.name: EvaluatedArm(arm) for arm in arms}
    for path in paths:
        for (name, seed), rows in sorted(read_answers(path).items()):
            if (one := done.get(name)) is None:
                raise ConfigError(f"{path}: the study has no arm {name}")
            if one.arm.trainer is None:
                one.predictions = one.predictions or {seed: rows}
            elif seed in one.predictions:
                raise ConfigError(f"{path}: another file has {name} with seed {seed}, too")
            else:
                one.predictions[seed] = rows
    return [one for one in done.values() if one.predictions]


def arm_sheet(done: Iterable[EvaluatedArm]) -> Sheet:
    """Returns EM and F1 of every arm: means over seeds, and EM by seed."""
    rows = []
    for one in done:
        em, f1 = (
            [known_mean(getattr(row, name) for row in rows) for rows in one.predictions.values()]
            for name in ("em", "f1")
        )
        by_seed = ", ".join(
            f"{seed}: {percent(value)}" for seed, value in zip(one.predictions, em, strict=True)
        )
        by_seed = by_seed if one.arm.trainer else NONE
        rows.append((one.arm.name, percent(known_mean(em)), by_seed, percent(known_mean(f1))))
    return Sheet("Arms (per cent)", ("arm", "EM", "by seed", "F1"), tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", choices=POOLED)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, help="SVG file of EM against costs")
    options = parser.parse_args()
    study = import_module(STUDIES[options.study])
    done = pooled(study.ARMS, [one / f"{options.study}-answers.csv" for one in options.folders])
    found = findings({one.arm.name: one for one in done}, study.CLAIMS, seed=0)
    sheets = [arm_sheet(done), claim_sheet(found)]
    files = [one / f"{options.study}-costs-by-seed.csv" for one in options.folders]
    costs = [cost for file in files if file.exists() for cost in supervision.read_costs(file)]
    if costs:
        sheets.append(supervision.cost_sheet(supervision.MEANS, supervision.mean_costs(costs)))
    for sheet in sheets:
        print(sheet.markdown())
    measured = {one.claim.name for one in found}
    if missing := [one.name for one in study.CLAIMS if one.name not in measured]:
        print(f"Not measured, so Holm's family is smaller: {', '.join(missing)}.")
    print(minimum_detectable_effect([one.em for one in found]))
    if options.plot and costs:
        supervision.plot_costs(costs, options.plot)


if __name__ == "__main__":
    main()
