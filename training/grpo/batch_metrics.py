"""The metrics of outcome RL: names in `metrics.jsonl`, and units."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

PREFIXES: Mapping[str, str] = {"components": "reward/", "endings": "end/", "lost": "lost_"}
"""Fields with several values → prefix of their keys in `metrics.jsonl`."""


@dataclass(slots=True)
class BatchMetrics:
    """Metrics of a batch of rollouts and of its first update; None if not measured.

    The lines of a batch's further updates have only the metrics of the update.

    Attributes:
        sync_s, sample_s: Seconds to serve and check the weights; to draw the rollouts.
        canary_error, canary_moved: Nats per token; see `training.grpo.canary.CanaryResult`.
        rollouts: Number of rollouts with a reward. The means and shares below are over these.
        reward, components: Mean of the reward, and of each component.
        em, f1, evaluated, copied: Means, in [0, 1]; see docs/tables.md.
        answer_rate, format_ok: Share with an answer; share in the protocol's format.
        policy_tokens, total_tokens: Mean number of sampled tokens; of all tokens.
        calls, retrievals, valid_searches: Mean numbers per rollout.
        endings: Share of each stop reason.
        lost: Number of rollouts without a reward, by error.
        silent_share: Share of the groups without reward spread, which teach nothing.
        dev_em, dev_lost: Greedy exact match on the dev questions, in [0, 1]; number that failed.
        rollout_s, before_s: Seconds for the whole batch; from there to its first update.
        too_long: Number of calls above `max_length`.
        kl: Mean log-ratio of the policy to the start, in nats per token (estimate k1).
        entropy, clip_share: Nats per token; share of tokens whose gradient is clipped.
        engine_gap: Mean absolute difference of the engine's log-probabilities, in nats per token.
        rows, trained_tokens: Calls in the update; tokens of its forward passes.
        train_s: Seconds of the update.
        lost_updates: 1 if the update was skipped, because loss or gradient was not finite.
    """

    sync_s: float | None = None
    canary_error: float | None = None
    canary_moved: float | None = None
    sample_s: float | None = None
    rollouts: float | None = None
    reward: float | None = None
    em: float | None = None
    f1: float | None = None
    answer_rate: float | None = None
    format_ok: float | None = None
    policy_tokens: float | None = None
    total_tokens: float | None = None
    calls: float | None = None
    retrievals: float | None = None
    valid_searches: float | None = None
    evaluated: float | None = None
    copied: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    endings: Mapping[str, float] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    silent_share: float | None = None
    dev_lost: float | None = None
    dev_em: float | None = None
    rollout_s: float | None = None
    too_long: int | None = None
    before_s: float | None = None
    kl: float | None = None
    entropy: float | None = None
    clip_share: float | None = None
    engine_gap: float | None = None
    rows: int | None = None
    trained_tokens: int | None = None
    train_s: float | None = None
    lost_updates: int | None = None

    def line(self) -> dict[str, float]:
        """Returns the measured values by their keys in `metrics.jsonl`."""
        line = {metric.name: getattr(self, metric.name) for metric in fields(self)}
        for name, prefix in PREFIXES.items():
            line |= {prefix + key: value for key, value in line.pop(name).items()}
        return {key: value for key, value in line.items() if value is not None}
