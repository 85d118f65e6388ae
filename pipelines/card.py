"""The dataset card of a run folder: what it holds, how it came to be, and under which licences."""

from collections import Counter

from pipelines.run import Run, installed_version, repository
from storage.atomic import atomic_write_text
from storage.manifest import load_manifest
from storage.parts import read_parts
from storage.records import Question
from storage.schemas import table_to_records


def write_card(run: Run, policy_digest: str, prompt_hash: str) -> None:
    """Write `README.md` of a run that has been annotated."""
    recipe, manifest = run.recipe, load_manifest(run.folder)
    questions = table_to_records(read_parts(run.folder, "questions"), Question)
    template = (repository() / "datasets" / "cards" / "run.md").read_text(encoding="utf-8")
    trees = sum(part.questions for part in manifest.of("trees"))
    card = template.format(
        name=run.folder.name,
        version=installed_version("branchwise"),
        trees=trees,
        nodes=manifest.rows("trees"),
        pairs=manifest.rows("pairs"),
        questions=len(questions),
        sources="\n".join(_source_lines(questions)),
        policy=recipe.policy.model,
        policy_digest=policy_digest,
        protocol=recipe.agent.protocol,
        prompt_hash=prompt_hash,
        iterations=recipe.mcts.iterations,
        max_children=recipe.mcts.max_children,
        selection=recipe.mcts.selection,
        evaluator=recipe.mcts.evaluator,
        estimator=recipe.estimator,
        alpha=recipe.spre.alpha,
        min_gap=recipe.pairs.min_gap,
        min_outcomes=recipe.pairs.min_outcomes,
    )
    atomic_write_text(run.folder / "README.md", card)


def _source_lines(questions: list[Question]) -> list[str]:
    count = Counter((q.source, q.licence or "not stated") for q in questions)
    return [f"| {source} | {n} | {licence} |" for (source, licence), n in sorted(count.items())]
