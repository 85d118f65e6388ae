"""Rows and differences of policies, compared with values computed by hand, and their tables."""

import io
from typing import Any

import pytest
from rich.console import Console
from sample_records import a_prediction

from branchwise.analysis.comparison import FEWEST, compare
from branchwise.analysis.tables import render_markdown, render_table
from branchwise.storage.schemas import SCHEMAS, rows_to_table, table_to_records
from branchwise.types import FailedPrediction, Prediction


def row(question_id: str, policy: str, em: float | None, **changes: Any) -> Prediction:
    values: dict[str, Any] = {
        "question_id": question_id,
        "type": "bridge",
        "policy": policy,
        "prediction": "x",
        "answers": ("x",),
        "em": em,
        "f1": em,
        "cover_em": em,
        "input_tokens": 10,
        "output_tokens": 4,
        "latency_s": 0.5,
    }
    return a_prediction(**(values | changes))


def test_a_row_has_the_means_over_its_questions() -> None:
    own = [
        row("a", "p", 1.0, f1=1.0, steps=1, searches=0, supporting_recall=None),
        row("b", "p", 0.0, f1=0.5, steps=5, searches=2, forced=True, supporting_recall=1.0),
        row("c", "p", 0.0, f1=0.0, format_ok=False, supporting_recall=0.5),
    ]
    (only,) = compare({"p": own}).rows
    assert (only.n, only.answerable) == (3, 3)
    assert only.means["em"] == pytest.approx(1 / 3)
    assert only.means["f1"] == pytest.approx(0.5)
    assert only.means["supporting_recall"] == pytest.approx(0.75)
    assert (only.means["steps"], only.means["searches"]) == (3.0, 1.0)
    assert (only.means["invalid"], only.means["forced"], only.means["refused"]) == pytest.approx(
        (1 / 3, 1 / 3, 0)
    )
    assert only.means["refusal_recall"] is None


def test_refusals_are_judged_on_unanswerable_questions() -> None:
    own = [
        row("a", "p", 0.0, refused=True),  # refused, though answerable
        row("b", "p", 1.0),
        row("c", "p", None, f1=None, refused=True),
        row("d", "p", None, f1=None, refused=True),
        row("e", "p", None, f1=None),
    ]
    (only,) = compare({"p": own}).rows
    assert only.means["em"] == 0.5  # over the two answerable ones
    assert only.means["refusal_precision"] == pytest.approx(2 / 3)
    assert only.means["refusal_recall"] == pytest.approx(2 / 3)


def test_a_table_has_columns_for_refusals_and_backtracks_only_if_any_occur() -> None:
    own = [
        row("a", "p", 1.0, backtracks=3),
        row("b", "p", None, f1=None, refused=True, backtracks=0),
        row("c", "p", 0.0),
    ]
    found = compare({"p": own, "q": [row("a", "q", 1.0, backtracks=0)]})
    assert [r.means["backtracks"] for r in found.rows if r.stratum == "all"] == [1.0, 0.0]
    lines = render_markdown(found).splitlines()
    refusals = [column(lines, name) for name in ("refused", "refusal precision", "refusal recall")]
    assert refusals == [["33.3", "0.0"], ["100.0", "–"], ["100.0", "–"]]
    assert "| backtracks |" in "".join(lines)
    without = render_markdown(compare({"q": [row("a", "q", 1.0, backtracks=0)]}))
    assert "refus" not in without and "backtracks" not in without and "served" not in without


def column(lines: list[str], name: str) -> list[str]:
    """Returns the cells of the first Markdown table that has the column."""
    start, cells = next((n, c) for n, c in enumerate(map(cells_of, lines)) if name in c)
    place, own = cells.index(name), []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        own.append(cells_of(line)[place])
    return own


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_means_skip_rows_without_a_value_and_show_the_count() -> None:
    cited: dict[str, Any] = {"relevance_full": False, "all_correct": False, "turn_tokens": 100}
    own = [
        row("a", "p", 1.0, relevance=1.0, **{**cited, "all_correct": True, "relevance_full": True}),
        row("b", "p", 0.0, relevance=0.5, format_ok=False, format_failures=("list",), **cited),
        row("c", "p", 0.0, format_ok=True, format_failures=(), judge=1.0),
    ]
    lost = FailedPrediction("d", "atlas", "bridge", 0, 0.0, 0.0, 0.0, judge=0.0)
    found = compare({"p": own}, {"p": [lost]})
    (whole,) = found.rows
    assert (
        whole.means["relevance"],
        whole.means["relevance_full"],
        whole.means["all_correct"],
    ) == (0.75, 0.5, 0.5)
    assert (whole.means["judge"], whole.means["turn_tokens"], whole.means["retrievals"]) == (
        0.5,
        100,
        None,
    )
    assert [whole.counts[name] for name in ("em", "relevance", "judge", "copied")] == [4, 2, 2, 0]
    assert whole.broken == {"list": 0.5}
    text = render_markdown(found)
    assert "| 75.0 (2) | 50.0 (2) |" in text.replace("\n", " ")
    assert "| 50.0 (2) | 4 | 1 |" in text, "the judge score is over all four rows"
    assert "| p | list | 50.0 |" in text
    assert "served" not in text and "copied" not in text


def test_tables_fit_a_terminal_without_cutting_numbers() -> None:
    changes: dict[str, Any] = {"relevance": 0.5, "relevance_full": True, "all_correct": True}
    changes |= {"retrievals": 3, "corrections": 1, "evaluated": 0.5, "copied": 0.2, "forged": 2}
    changes |= {"turn_tokens": 12345, "judge": 1.0, "refused": True, "backtracks": 1}
    own = [row(str(i), "p" * 20, float(i % 2), hops=2 + i % 2, **changes) for i in range(20)]
    found = compare({"a-policy-of-a-long-name": own, "q": own}, resamples=100)
    console = Console(width=80, record=True, file=io.StringIO())
    for by_type in (False, True):
        console.print(render_table(found, by_type=by_type))
        text = console.export_text()
        assert "…" not in text and max(map(len, text.splitlines())) <= 80
        assert text.index("EM") < text.index("F1") < text.index("relevance")
        assert "12345" in text
        assert ("hops 2" in text.replace("\n", " ")) == by_type


def test_differences_are_paired_by_question() -> None:
    base = [row("a", "base", 0.0), row("b", "base", 1.0), row("x", "base", 1.0)]
    dpo = [row("b", "dpo", 1.0), row("a", "dpo", 1.0), row("y", "dpo", 0.0)]
    found = compare({"base": base, "dpo": dpo}, resamples=200)
    em = next(d for d in found.differences if d.metric == "em")
    assert (em.policy, em.baseline, em.interval.n) == ("dpo", "base", 2)
    assert em.interval.mean == 0.5  # unpaired, it would be 0


def test_a_failed_question_counts_as_wrong() -> None:
    base = [row("a", "base", 1.0), row("b", "base", 0.0, type="single")]
    lost = FailedPrediction("b", "atlas", "single", 0, 0.0, 0.0, 0.0)
    refusable = FailedPrediction("c", "atlas", None, 0, None, None, None)
    found = compare({"base": base, "own": [base[0]]}, {"own": [lost, refusable]}, resamples=100)
    rows = {(r.policy, r.stratum): r for r in found.rows}
    whole = rows["own", "all"]
    assert (whole.n, whole.failed, whole.answerable, whole.means["em"]) == (3, 2, 2, 0.5)
    assert (whole.means["steps"], whole.means["refusal_recall"]) == (3.0, 0.0)
    assert (whole.means["f1"], whole.means["cover_em"]) == (0.5, 0.5)
    assert whole.means["refusal_precision"] is None, "no question was refused"
    assert (rows["own", "type single"].means["em"], rows["own", "type single"].means["steps"]) == (
        0.0,
        None,
    )
    assert {(d.stratum, d.interval.n) for d in found.differences if d.metric == "em"} == {
        ("all", 2)
    }


def test_stored_scores_equal_those_just_made() -> None:
    made = [row(str(i), "p", 0.0, f1=2 / 3) for i in range(12)]
    stored = table_to_records(rows_to_table(made, SCHEMAS["predictions"], "r"), Prediction)
    found = compare({"stored": stored, "made": made}, resamples=100)
    assert {d.interval.differing for d in found.differences} == {0}


def test_each_policy_is_compared_with_all_earlier_ones() -> None:
    own = [row(f"b{i}", "p", 1.0, type="bridge") for i in range(FEWEST)]
    own += [row(f"s{i}", "p", 0.0, type="single") for i in range(FEWEST)]
    own += [row(f"c{i}", "p", 0.0, type="comparison") for i in range(FEWEST - 1)]
    found = compare(dict.fromkeys(("base", "warm", "dpo"), own), resamples=100)
    compared = [(d.policy, d.baseline, d.stratum) for d in found.differences if d.metric == "em"]
    assert compared == [
        ("warm", "base", "all"),
        ("dpo", "base", "all"),
        ("dpo", "warm", "all"),
        ("warm", "base", "type bridge"),
        ("dpo", "base", "type bridge"),
        ("warm", "base", "type single"),
        ("dpo", "base", "type single"),
    ]


def test_strata_are_sources_types_and_hops() -> None:
    own = [
        row("a", "p", 1.0, type="bridge"),
        row("b", "p", 0.0, type="comparison"),
        row("c", "p", 0.0, source="nq", type=None, hops=2),
    ]
    found = compare({"p": own, "q": own[:2]}, resamples=100)
    assert [(r.policy, r.stratum, r.n) for r in found.rows] == [
        ("p", "all", 3),
        ("q", "all", 2),
        ("p", "source atlas", 2),
        ("q", "source atlas", 2),
        ("p", "source nq", 1),
        ("p", "type bridge", 1),
        ("q", "type bridge", 1),
        ("p", "type comparison", 1),
        ("q", "type comparison", 1),
    ]
    assert "source nq" not in {d.stratum for d in found.differences}
    own.append(row("d", "p", 1.0, hops=3))
    lost = FailedPrediction("e", "atlas", None, 0, 0.0, 0.0, 0.0, hops=3)
    found = compare({"p": own}, {"p": [lost]})
    assert [
        (r.stratum, r.n, r.means["em"]) for r in found.rows if r.stratum.startswith("hops")
    ] == [
        ("hops 2", 1, 0.0),
        ("hops 3", 2, 0.5),
    ]


def test_guessable_questions_are_a_stratum_of_their_own() -> None:
    own = [row(f"g{i}", "p", 1.0, guessable=True) for i in range(FEWEST)]
    own += [row(f"n{i}", "p", 0.0, guessable=False) for i in range(FEWEST - 1)]
    lost = FailedPrediction("n9", "atlas", "bridge", 0, 0.0, 0.0, 0.0, guessable=False)
    found = compare({"p": own, "q": own}, {"q": [lost]}, resamples=100)
    assert [
        (r.policy, r.stratum, r.n, r.means["em"]) for r in found.rows if r.stratum != "all"
    ] == [
        ("p", "guessable", FEWEST, 1.0),
        ("q", "guessable", FEWEST, 1.0),
        ("p", "not guessable", FEWEST - 1, 0.0),
        ("q", "not guessable", FEWEST, 0.0),
    ]
    assert {d.stratum for d in found.differences} == {"all", "guessable"}
    assert {r.stratum for r in compare({"p": own[:FEWEST]}).rows} == {"all"}


def test_references_are_only_used_as_baselines() -> None:
    own = [row(f"b{i}", "p", 1.0, type="bridge") for i in range(FEWEST)]
    own += [row(f"s{i}", "p", 0.0, type="single") for i in range(FEWEST)]
    names = ("oracle", "warm", "dpo", "majority")
    found = compare(dict.fromkeys(names, own), references=("oracle", "majority"), resamples=100)
    compared = [(d.policy, d.baseline, d.stratum) for d in found.differences if d.metric == "em"]
    assert compared == [
        ("dpo", "warm", "all"),
        ("warm", "oracle", "all"),
        ("dpo", "oracle", "all"),
        ("warm", "majority", "all"),
        ("dpo", "majority", "all"),
        ("dpo", "warm", "type bridge"),
        ("dpo", "warm", "type single"),
    ]
    assert [r.policy for r in found.rows if r.stratum == "all"] == list(names)


def test_compare_rejects_an_empty_set_of_policies() -> None:
    with pytest.raises(ValueError, match="no policies"):
        compare({})


def test_tables_escape_the_names_of_policies() -> None:
    name = "evil[bold]|\x1b[31m"
    base = [row("a", "base", 0.0), row("b", "base", 1.0)]
    own = [row("a", name, 1.0), row("b", name, 1.0, forced=True)]
    found = compare({"base": base, name: own}, resamples=100)
    markdown = render_markdown(found)
    assert "| base | all | 50.0 | 50.0 | 50.0 | 2 | 50.0 |" in markdown
    assert "| evil[bold]\\|\\x1b[31m − base | all | 2 | +50.0 [0.0, +100.0] |" in markdown
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(render_table(found))
    text = console.export_text()
    assert "evil[bold]|\\x1b[31m" in text
    assert "\x1b" not in text


def test_refusal_precision_is_none_if_all_questions_are_answerable() -> None:
    (only,) = compare({"p": [row("a", "p", 0.0, refused=True), row("b", "p", 1.0)]}).rows
    assert (
        only.means["refused"],
        only.means["refusal_precision"],
        only.means["refusal_recall"],
    ) == (0.5, None, None)


def test_a_trajectory_without_an_answer_does_not_count_as_a_refusal() -> None:
    own = [
        row("a", "p", None, f1=None, prediction=None, format_ok=False),  # cut short, not refused
        row("b", "p", None, f1=None, prediction=None, refused=True),
        row("c", "p", 0.0, prediction=None, refused=True),
    ]
    (only,) = compare({"p": own}).rows
    assert (only.means["refusal_precision"], only.means["refusal_recall"]) == (0.5, 0.5)
    assert only.means["refused"] == pytest.approx(2 / 3)


def test_differences_are_paired_by_question_and_seed() -> None:
    base = [row("a", "base", 0.0, seed=0), row("a", "base", 1.0, seed=1)]
    own = [row("a", "own", 0.0, seed=1), row("a", "own", 1.0, seed=0)]
    found = compare({"base": base, "own": own}, resamples=2000)
    em = next(d for d in found.differences if d.metric == "em").interval
    assert (em.low, em.high) == (-1.0, 1.0)  # one up, one down: a wrong pairing has -1 and 0
