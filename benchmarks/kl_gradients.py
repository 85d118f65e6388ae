"""Plots the estimates of the KL divergence, and the gradient that each gives as a loss term.

In a loss over the policy's own samples, the expected gradient of k1 is 0, that of k2 is the
gradient of KL(π ‖ π_ref), and that of k3 the gradient of KL(π_ref ‖ π) (ARENA, appendix B). Both
panels are exact sums over a policy with two actions; `tests/training/test_advantages.py` checks
three actions.

    python -m benchmarks.kl_gradients [FILE]
"""

import argparse
from pathlib import Path

import torch

from branchwise.runs.studies.output import svg
from branchwise.training.grpo.loss import Estimator, divergence

REFERENCE = 0.5
"""Probability of the first action under π_ref."""

_ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")


def expected_gradient(estimator: Estimator, logits: torch.Tensor) -> torch.Tensor:
    """Returns the loss term's expected gradient in the logit of the first action.

    Args:
        logits: Difference of the two actions' logits under π, for each point. Shape (points,).
    """
    logits = logits.clone().requires_grad_()
    log_policy = _log_policy(logits)
    term = divergence(estimator, log_policy - _log_reference())
    loss = (log_policy.detach().exp() * term).sum()  # samples are not differentiated
    return torch.autograd.grad(loss, logits)[0]


def true_gradient(logits: torch.Tensor, *, of_reference: bool) -> torch.Tensor:
    """Returns the gradient of KL(π ‖ π_ref), or of KL(π_ref ‖ π) if `of_reference` is set."""
    logits = logits.clone().requires_grad_()
    policy, reference = _log_policy(logits), _log_reference().expand(len(logits), 2)
    first, second = (reference, policy) if of_reference else (policy, reference)
    return torch.autograd.grad((first.exp() * (first - second)).sum(), logits)[0]


def _log_policy(logits: torch.Tensor) -> torch.Tensor:
    return torch.stack((logits, torch.zeros_like(logits)), dim=1).log_softmax(dim=1)


def _log_reference() -> torch.Tensor:
    return torch.tensor([REFERENCE, 1 - REFERENCE]).log()


def plot(path: Path) -> None:
    """Writes the two panels as SVG."""
    log_ratio = torch.linspace(-2, 2, 201)
    logits = torch.linspace(-5, 5, 201)
    policy = logits.sigmoid()
    with svg(path, 2, 9, 3.4) as (estimates, gradients):
        for name in _ESTIMATORS:
            estimates.plot(log_ratio, divergence(name, log_ratio), label=name)
            gradients.plot(policy, expected_gradient(name, logits), label=f"{name} as a loss term")
        for of_reference, label in ((False, "∇KL(π ‖ π_ref)"), (True, "∇KL(π_ref ‖ π)")):
            gradient = true_gradient(logits, of_reference=of_reference)
            gradients.plot(
                policy[::10], gradient[::10], "k+" if of_reference else "kx", label=label
            )
        estimates.set_xlabel("log π − log π_ref of a token")
        estimates.set_title("estimate, in nats")
        gradients.set_xlabel(f"π of the first action (π_ref: {REFERENCE})")
        gradients.set_title("expected gradient in its logit")
        estimates.legend()
        gradients.legend(fontsize="x-small")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path("kl-gradients.svg"))
    plot(parser.parse_args().file)
