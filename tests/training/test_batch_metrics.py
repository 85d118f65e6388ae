"""Names of the metrics of outcome RL: in `metrics.jsonl`, in the report and in the docs."""

import re
from dataclasses import fields
from pathlib import Path

from branchwise.training.grpo.batch_metrics import PREFIXES, BatchMetrics

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = {metric.name for metric in fields(BatchMetrics)} - PREFIXES.keys()
OF_THE_TRAINERS = {"loss", "accuracy", "margin", "grad_norm"}


def test_the_keys_of_the_curve_stay_the_same() -> None:
    """Readers of stored trainings rely on these keys."""
    keys = """
        answer_rate before_s calls canary_error canary_moved clip_share copied dev_em dev_lost em
        end/a engine_gap entropy evaluated f1 format_ok kl lost_b lost_updates policy_tokens
        retrievals reward reward/c rollout_s rollouts rows sample_s silent_share sync_s too_long
        total_tokens train_s trained_tokens valid_searches
    """
    metrics = BatchMetrics(endings={"a": 1}, lost={"b": 1}, components={"c": 1})
    for name in NAMES:
        assert name not in metrics.line(), "an unmeasured metric has no key"
        setattr(metrics, name, 0)
    assert sorted(metrics.line()) == keys.split()


def test_report_and_docs_name_only_existing_metrics() -> None:
    script = (REPOSITORY / "branchwise/report/page/charts.js").read_text()
    curves = re.search(r"const CURVES = \[(.*?)\]", script)
    assert curves
    plotted = set(re.findall(r'"(\w+)"', curves[1]))
    page = (REPOSITORY / "docs/methods/outcome-rl.md").read_text()
    table = page.split("### What to watch")[1].split("\n### ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(plotted) > 10 and len(documented) > 10
    assert plotted | documented <= NAMES | OF_THE_TRAINERS
