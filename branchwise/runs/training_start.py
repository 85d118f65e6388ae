"""Checks that a training starts from the policy that drew its data."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from branchwise.base import ConfigError, digest_of, object_inside, reject_special_files
from branchwise.engines import PRECISIONS, model_digest, served_files
from branchwise.rewards import KIND as REWARD_MODEL
from branchwise.storage import load_manifest, read_parts
from branchwise.training import TrainingKind, TrainingRun
from branchwise.weights import TRAINING_RECORD, policy_digest, policy_files

from .factories import WARM_START, model_folder
from .folder import Run
from .preflight import require, start_files
from .stage import StageContext, checked_name


def validated_start_policy(
    context: StageContext, run: Run, table: str, *, allow_off_policy_pairs: bool = False
) -> str:
    """Returns the recipe's `policy.trainable` after checking that this policy drew the rows.

    The weights are compared, at any precision of the embedded engine. A preference between steps
    that the policy would not take teaches it nothing. The weights of an endpoint's model, and of
    the policy of imported pairs, are unknown, which is logged.

    Args:
        table: Table of those rows, with a column `policy_digest`.
        allow_off_policy_pairs: Whether another policy may have drawn them; this is then logged.

    Raises:
        ConfigError: If another policy drew them without `allow_off_policy_pairs`, or the start
            does not exist, or the policy's engine could not run the trained policy.
    """
    start, policy = context.recipe.policy.trainable, run.recipe.policy
    require(start_files("policy", context.recipe.policy, start))
    row_digests = set(read_parts(run.folder, table, ["policy_digest"])["policy_digest"].to_pylist())
    if "" in row_digests:
        context.log(
            f"the policy that drew the imported rows is unknown; training starts from {start}"
        )
        return start
    is_served = policy.engine == "vllm" and served_files(policy.model) is None
    if policy.engine == "openai" or is_served:  # rows contain only the policy's name
        context.log(
            f"an endpoint served {policy.model}, which drew the rows; whether {start} has the same "
            "weights cannot be checked"
        )
        return start
    files = policy_files(start)
    digest = model_digest(policy.model_copy(update={"model": start}))
    other_digests = row_digests - {
        digest,
        *(policy_digest(files, precision) for precision in PRECISIONS),
    }
    if other_digests and not allow_off_policy_pairs:
        raise ConfigError(
            f"{run.folder}: drawn by {policy.model} (policy_digest "
            f"{', '.join(sorted(other_digests))}), but training would start from {start} "
            f"({digest}). Start from the policy that drew the run: --config "
            f"{run.folder}/config.yaml, or --set policy.model={policy.model}. If "
            "its weights have changed since, restore them, or annotate into another --run folder"
        )
    if other_digests:
        context.log(f"off-policy: {policy.model} drew the rows, and {start} is trained on them")
    return start


def trained_folder(context: StageContext, kind: str, name: str) -> Path:
    """Returns the folder of a training: `models/<run>/<name>`.

    Raises:
        ConfigError: If the name is not a valid folder name, or is the warm start's, which may be
            the start of another training. Also if the folder has a policy but a reward model would
            be written, or the reverse, or if it is a link.
    """
    if checked_name(name) == WARM_START != kind:
        raise ConfigError(f"--name {name} is the folder of `make warm-start`; choose another")
    target = model_folder(context.run, name)
    held = None
    with suppress(OSError, ValueError):  # of a kind that is not known
        held = object_inside(target, TRAINING_RECORD).get("kind")
    if isinstance(held, str) and (held == REWARD_MODEL) != (kind == REWARD_MODEL):
        raise ConfigError(
            f"{target}: holds a training of kind {held}, which one of kind {kind} would overwrite. "
            "Give another --name, or remove the folder"
        )
    reject_special_files(target, linked=False)
    return target


def training_data_provenance(run: Run, table: str) -> dict[str, Any]:
    """Identifies the training rows for `training.json`, so that they can be compared."""
    parts = load_manifest(run.folder).of(table)
    return {
        "run": run.folder.name,
        "run_id": run.id,
        "table": table,
        "rows": sum(part.rows for part in parts),
        "digest": digest_of(*(part.sha256 for part in parts)),
    }


def training_run(
    context: StageContext, kind: TrainingKind, start: str, target: Path, data: Mapping[str, Any]
) -> TrainingRun:
    """Returns the training of a stage.

    Args:
        data: Origin of the examples, as JSON.
    """
    recipe = context.recipe
    return TrainingRun(
        kind, recipe.training, start, target, recipe.seed, context.resume, context.log, data
    )
