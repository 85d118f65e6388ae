"""Turns figures about a training into findings with advice.

The thresholds are rules of thumb, each with its reason. A training beyond them can still succeed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from branchwise.analysis import Bounds, PairFigures, SurvivalRow, TreeFigures
from branchwise.training import PolicyShift

Rating = Literal["good", "watch", "bad", "–"]

FEW_PAIRS, LEAST_PAIRS = 500, 50
"""Below 500 pairs, a gain is rarely visible on a few hundred questions. 50 pairs in batches of 8
are six updates, which barely move a policy."""
LEAST_SURVIVAL, GOOD_SURVIVAL = 0.6, 0.75
"""Chance keeps half of the decided pairs, so below 0.6 most labels are noise."""
MANY_TIED = 0.5
"""If half of the pairs show no difference in fresh rollouts, there is little to learn."""
MIN_FRESH_GAP_RATIO = 0.5
"""Share of the labels' mean gap that fresh rollouts should reproduce. A policy learned from pairs
with 72 %, but not from pairs with 33 % (docs/results.md, `labels` and `real-dpo`).
"""
MANY_SILENT, SOME_SILENT = 0.6, 0.4
"""A question that is always right or always wrong prefers no step: its trees are wasted."""
MANY_FLAT = 0.5
MUCH_ONE_OUTCOME, LARGE_GAP = 0.25, 0.4
"""One outcome is one draw. At gaps above 0.4, fresh rollouts confirmed 69 to 72 % of the orders of
single sampled draws and reversed 22 %. At smaller gaps, orders came from means of all outcomes, and
36 to 57 % were confirmed (docs/results/labels.md). More outcomes alone did not help."""
SMALL_GAP = 0.1
"""A median gap up to a step's price (1 − α) compares path lengths, not answers."""
LONGER_BY = 0.1
"""Distance from one half above which a policy can learn the length instead of the quality."""
MANY_NEAR = 0.2
MUCH_REPEATED, MUCH_CONTRADICTED = 0.1, 0.01
MANY_GUESSABLE = 0.5
ONE_KIND = 0.95
MUCH_INVALID = 0.1
UNMOVED_KL, FAR_KL = 0.01, 5.0
"""Nats per step. Below the first, the policy answers as before. A step of about ten tokens that
lost five nats is drawn so rarely that the policy forgets its use."""
UNMOVED_MARGIN = 0.01
"""A tenth of a nat between the two steps of a pair, at the usual beta."""
LOW_ACCURACY, MEMORISED = 0.6, 0.98
LEAST_CORRELATION = 0.97
"""Correlation of the logits' changes before and after export; export fails below 0.9."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis: subject, figure, verdict, advice."""

    what: str
    figure: str
    verdict: Rating
    advice: str


def conclusion(findings: Sequence[Finding]) -> str:
    """Summarises all findings in a sentence."""
    bad, watch = (
        ", ".join(finding.what for finding in findings if finding.verdict == verdict)
        for verdict in ("bad", "watch")
    )
    if bad:
        return f"training on this run is unlikely to help; fix first: {bad}"
    if watch:
        return f"this run can be trained on; check: {watch}"
    return "no problem found: this run can be trained on"


def _graded(
    watch: bool, what: str, figure: str, advice: str, usual: str, *, bad: bool = False
) -> Finding:
    """Returns a finding with its advice, or with `usual` if the verdict is good."""
    verdict: Rating = "bad" if bad else "watch" if watch else "good"
    return Finding(what, figure, verdict, advice if bad or watch else usual)


def pair_findings(pairs: PairFigures | None) -> Iterator[Finding]:
    """Yields findings on the pairs; imported ones give findings only on their texts."""
    if pairs is None:
        yield Finding(
            "pairs",
            "none",
            "bad",
            "nothing to train on: annotate more questions, lower pairs.min_outcomes or min_gap "
            "(`branchwise relabel`), or raise mcts.temperature in a new run",
        )
        return
    n = pairs.pairs
    yield _graded(
        n < FEW_PAIRS,
        "pairs",
        f"{n} of {pairs.questions} questions",
        f"expect no measurable gain below about {FEW_PAIRS}: annotate more questions",
        f"{FEW_PAIRS} or more is usual",
        bad=n < LEAST_PAIRS,
    )
    yield from _label_findings(pairs)
    yield _length_finding(pairs)
    yield _graded(
        pairs.near_duplicates > MANY_NEAR,
        "near-duplicates",
        f"{pairs.near_duplicates:.0%} compare nearly the same words",
        "raise mcts.temperature to draw more distinct siblings",
        f"under {MANY_NEAR:.0%} is usual",
    )
    yield _graded(
        pairs.repeated > MUCH_REPEATED or pairs.contradicted > MUCH_CONTRADICTED,
        "repeated pairs",
        f"{pairs.repeated:.0%}; {pairs.contradicted:.0%} also occur with sides swapped",
        "labels differ between trees of one question: raise mcts.iterations or pairs.min_gap",
        "next to none is usual",
        bad=pairs.contradicted > MUCH_REPEATED,
    )
    yield _graded(
        pairs.guessable > MANY_GUESSABLE,
        "guessable questions",
        f"{pairs.guessable:.0%} have a question whose answer is yes, no or part of the question",
        "a lucky guess counts as right; pairs.guessable=drop (`branchwise relabel`) drops them",
        f"under {MANY_GUESSABLE:.0%} is usual",
    )
    yield _action_finding(pairs)


def _label_findings(pairs: PairFigures) -> Iterator[Finding]:
    if pairs.one_outcome is None or pairs.gaps is None:
        return
    low, _, median, _, high = pairs.gaps
    yield _graded(
        pairs.one_outcome > MUCH_ONE_OUTCOME and median <= LARGE_GAP,
        "one-outcome pairs",
        f"{pairs.one_outcome:.0%} have a side with one outcome",
        "raise pairs.min_gap (`branchwise relabel`), or set mcts.rollout_temperature=0: "
        f"at gaps below {LARGE_GAP}, only about half of the sampled orders hold",
        f"under {MUCH_ONE_OUTCOME:.0%}, or gaps above {LARGE_GAP}, are usual",
    )
    yield _graded(
        median <= SMALL_GAP,
        "reward gap",
        f"median {median:.2f} (10–90 %: {low:.2f}–{high:.2f})",
        "raise pairs.min_gap (`branchwise relabel`) to drop gaps due to path length or noise",
        f"a median above {SMALL_GAP} is usual",
    )


def _length_finding(pairs: PairFigures) -> Finding:
    share, interval = pairs.chosen_longer, pairs.chosen_longer_interval
    if share is None or interval is None:
        return Finding("length bias", "all replies are equally long", "good", "")
    return _graded(
        not interval[0] <= 0.5 <= interval[1] and abs(share - 0.5) > LONGER_BY,
        "length bias",
        f"chosen is longer in {share:.0%} {_between(interval)}, "
        f"by {pairs.length_difference:+.1f} characters on average",
        "the policy may learn the length: compare with a training on pairs of equal lengths",
        "an interval that includes 50% is usual",
    )


def _action_finding(pairs: PairFigures) -> Finding:
    most = list(pairs.actions.items())
    return _graded(
        most[0][1] > ONE_KIND * pairs.pairs,
        "action mix",
        ", ".join(f"{kind} {count / pairs.pairs:.0%}" for kind, count in most[:4]),
        "the policy learns only this choice; more mcts.iterations also compare later steps",
        "the policy learns only choices that are compared",
    )


def tree_findings(
    trees: TreeFigures | None, questions_with_pair: int, *, returns: bool = False
) -> Iterator[Finding]:
    """Yields findings on the trees.

    Args:
        returns: Whether labels are EVO-RAG's, which can prefer a step regardless of the answer.
    """
    if trees is None:
        yield Finding("trees", "none", "–", "an imported run: its labels cannot be checked")
        return
    yield _graded(
        trees.silent > SOME_SILENT and not returns,
        "silent questions",
        f"{trees.right:.0%} always right, {trees.wrong:.0%} always wrong, "
        f"of {trees.questions}; {questions_with_pair / trees.questions:.0%} give a pair",
        "choose questions at the edge of the policy's ability: harder ones if always right, "
        "easier ones or a better start policy if always wrong",
        "their steps still earn different rewards"
        if returns
        else f"under {SOME_SILENT:.0%} together is usual",
        bad=trees.silent > MANY_SILENT and not returns,
    )
    if trees.spread is None or trees.flat is None:
        yield Finding(
            "label spread",
            "no state has two labelled children",
            "bad",
            "raise mcts.iterations or mcts.max_children",
        )
    else:
        yield _graded(
            trees.flat > MANY_FLAT,
            "label spread",
            f"standard deviation {trees.spread:.2f} among siblings; zero in {trees.flat:.0%} "
            f"of {trees.states} states",
            "raise mcts.iterations, mcts.rollouts or mcts.temperature",
            f"zero in under {MANY_FLAT:.0%} is usual",
        )
    ends = "" if trees.invalid_rollouts is None else f", {trees.invalid_rollouts:.1%} of rollouts"
    yield _graded(
        max(trees.invalid_actions, trees.invalid_rollouts or 0.0) > MUCH_INVALID,
        "invalid actions",
        f"{trees.invalid_actions:.1%} of steps{ends}",
        "train a longer warm start, or set agent.structured=true if the server supports it",
        "next to none is usual",
    )


def survival_finding(row: SurvivalRow | None, sampled: int) -> Finding:
    """Returns the finding on label survival; `row` is None if no pair could be judged."""
    if row is None or row.decided is None or row.decided_interval is None:
        figure = f"none of {sampled} pairs was decided"
        return Finding("label survival", figure, "watch", "raise --sample or --rollouts")
    unsure = row.decided_interval[0] <= 0.5
    poor = row.decided < LEAST_SURVIVAL
    unreal = row.fresh_gap < MIN_FRESH_GAP_RATIO * row.label_gap
    if unsure and not poor:
        advice = "the sample is too small to exclude luck: raise --sample"
    elif row.tied > MANY_TIED and not poor:
        advice = "most differences do not change the outcome: raise pairs.min_gap"
    elif unreal and row.decided >= GOOD_SURVIVAL:
        advice = (
            "the fresh gap is less than half of the labels' gap: answers depend more on luck "
            "than on the step; first use a better start policy or a larger base"
        )
    else:
        advice = (
            "labels are partly noise: raise pairs.min_gap, use greedy rollouts "
            "(mcts.rollout_temperature=0), or raise mcts.rollouts"
        )
    return _graded(
        poor or unsure or unreal or row.tied > MANY_TIED or row.decided < GOOD_SURVIVAL,
        "label survival",
        f"{row.decided:.0%} {_between(row.decided_interval)} of decided pairs keep their order; of "
        f"all {row.pairs}: {row.kept:.0%} kept (by luck {row.luck:.0%}), {row.reversed:.0%} "
        f"reversed, {row.tied:.0%} tied; mean gap {row.label_gap:.2f}, fresh {row.fresh_gap:.2f} "
        f"({row.fresh_gap_interval[0]:.2f} to {row.fresh_gap_interval[1]:.2f})",
        advice,
        f"{GOOD_SURVIVAL:.0%} or more, with a fresh gap of at least half, is usual",
        bad=poor and row.decided_interval[1] < GOOD_SURVIVAL,
    )


def training_findings(moved: PolicyShift) -> Iterator[Finding]:
    """Yields findings on a preference training."""
    kl, margin, accuracy = moved.kl, moved.margin, moved.accuracy
    first, last = moved.first_loss, moved.loss
    yield _graded(
        first is not None and last is not None and last >= first,
        "training loss",
        f"{moved.losses}, {moved.steps} steps",
        "it did not fall, perhaps because of the last pairs: check margin and accuracy",
        "a fall is usual",
    )
    if kl is not None:
        # An estimate: likelier chosen steps (`sft_weight`) lower it, even below 0.
        unmoved = abs(kl) < UNMOVED_KL and (margin or 0.0) < UNMOVED_MARGIN
        yield _graded(
            kl > FAR_KL,
            "KL to the start",
            f"{kl:.3f} nats per step",
            "the policy did not move: raise training.dpo.lr or train more epochs"
            if unmoved
            else "the policy moved far: lower training.dpo.lr, train fewer epochs or raise beta",
            f"up to {FAR_KL:.0f} is usual",
            bad=unmoved,
        )
    if margin is not None and accuracy is not None:
        yield _graded(
            accuracy < LOW_ACCURACY or accuracy > MEMORISED,
            "margin, accuracy",
            f"{margin:.2f}, {accuracy:.0%}",
            "the policy memorised the pairs: train fewer epochs"
            if accuracy > MEMORISED
            else "the policy did not learn the pairs: train more epochs, or improve the labels",
            f"{LOW_ACCURACY:.0%} to {MEMORISED:.0%} on the training pairs is usual",
            bad=margin <= 0,
        )


def export_finding(correlations: dict[str, float]) -> Finding:
    """Returns the finding on exported files.

    Args:
        correlations: Correlation between the changes of the logits before and after export, by
            file format.
    """
    return _graded(
        min(correlations.values()) < LEAST_CORRELATION,
        "export",
        ", ".join(
            f"{form} keeps the change to {value:.3f}" for form, value in correlations.items()
        ),
        "rounding removed part of the trained change: train longer, or set policy.precision: f16",
        "0.99 or more is usual",
    )


def _between(interval: Bounds) -> str:
    return f"({interval[0]:.0%}–{interval[1]:.0%})"
