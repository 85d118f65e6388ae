"""Pools the answers of a study that ran on several machines.

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
from branchwise.base import known_mean
from branchwise.base.errors import ConfigError
from branchwise.base.sheet import NONE, Sheet, percent
from branchwise.pipelines.study.stage import STUDIES
from branchwise.studies import supervision
from branchwise.studies.arms import EvaluatedArm
from branchwise.studies.study_tables import (
    ANSWER_HEAD,
    claim_sheet,
    findings,
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
    scores: dict[tuple[str, int], list[Scored]] = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != ANSWER_HEAD:
            raise ConfigError(f"{path}: the columns of a study's answers are {ANSWER_HEAD}")
        for line in lines:
            seed, em, f1 = int(line["seed"]), float(line["em"]), float(line["f1"])
            row = FailedPrediction(line["question"], line["source"], None, seed, em, f1, None)
            scores.setdefault((line["arm"], seed), []).append(row)
    return scores


def pooled(arms: Sequence[Any], paths: Iterable[Path]) -> list[EvaluatedArm]:
    """Returns the arms with the answers of all files.

    Raises:
        ConfigError: If the study lacks an arm, or two files have one seed of a trained arm.
    """
    arms_by_name = {arm.name: EvaluatedArm(arm) for arm in arms}
    for path in paths:
        for (name, seed), rows in sorted(read_answers(path).items()):
            if (result := arms_by_name.get(name)) is None:
                raise ConfigError(f"{path}: the study has no arm {name}")
            if result.arm.trainer is None:
                result.predictions = result.predictions or {seed: rows}
            elif seed in result.predictions:
                raise ConfigError(f"{path}: another file has {name} with seed {seed}, too")
            else:
                result.predictions[seed] = rows
    return [result for result in arms_by_name.values() if result.predictions]


def arm_sheet(results: Iterable[EvaluatedArm]) -> Sheet:
    """Returns EM and F1 of every arm: means over seeds, and EM by seed."""
    rows = []
    for result in results:
        em, f1 = (
            [known_mean(getattr(row, name) for row in rows) for rows in result.predictions.values()]
            for name in ("em", "f1")
        )
        by_seed = ", ".join(
            f"{seed}: {percent(value)}" for seed, value in zip(result.predictions, em, strict=True)
        )
        by_seed = by_seed if result.arm.trainer else NONE
        rows.append((result.arm.name, percent(known_mean(em)), by_seed, percent(known_mean(f1))))
    return Sheet("Arms (per cent)", ("arm", "EM", "by seed", "F1"), tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("study", choices=POOLED)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--plot", type=Path, help="SVG file of EM against costs")
    options = parser.parse_args()
    study = import_module(STUDIES[options.study])
    results = pooled(
        study.ARMS, [folder / f"{options.study}-answers.csv" for folder in options.folders]
    )
    claims = findings({result.arm.name: result for result in results}, study.CLAIMS, seed=0)
    sheets = [arm_sheet(results), claim_sheet(claims)]
    files = [folder / f"{options.study}-costs-by-seed.csv" for folder in options.folders]
    costs = [cost for file in files if file.exists() for cost in supervision.read_costs(file)]
    if costs:
        sheets.append(supervision.cost_sheet(supervision.MEANS, supervision.mean_costs(costs)))
    for sheet in sheets:
        print(sheet.markdown())
    measured_names = {row.claim.name for row in claims}
    if missing := [claim.name for claim in study.CLAIMS if claim.name not in measured_names]:
        print(f"Not measured, so Holm's family is smaller: {', '.join(missing)}.")
    print(minimum_detectable_effect([row.em for row in claims]))
    if options.plot and costs:
        supervision.plot_costs(costs, options.plot)


if __name__ == "__main__":
    main()
