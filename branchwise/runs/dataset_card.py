"""The dataset card of a run folder: content, origin and licences."""

from collections import Counter
from importlib.resources import files

from branchwise.agent import protocol_of
from branchwise.base import atomic_write_text, markdown_cell, terminal_safe
from branchwise.mcts import ChainSettings, SearchSettings, TreeSettings
from branchwise.storage import Manifest, load_manifest, question_ids, read_parts

from .environment import installed_version
from .folder import Run


def write_card(run: Run) -> None:
    """Writes `README.md` of an annotated run."""
    recipe, manifest = run.recipe, load_manifest(run.folder)
    # Only two columns, because a large run's questions must not be in memory twice.
    licences = read_parts(run.folder, "questions", ["source", "licence"])
    template = files("branchwise").joinpath("cards/run.md").read_text(encoding="utf-8")
    described = {"min_gap", "min_outcomes"}
    filters = recipe.pairs.model_dump(mode="json", exclude_defaults=True, exclude=described)
    facts = {
        "name": run.folder.name,
        "version": installed_version("branchwise"),
        "trees": len(question_ids(run.folder, "trees")),
        "nodes": manifest.rows("trees"),
        "pairs": manifest.rows("pairs"),
        "questions": licences.num_rows,
        "policy": recipe.policy.model,
        "policy_digest": run.record.inputs["policy"],
        "protocol": recipe.agent.protocol,
        "prompt_hash": protocol_of(recipe.agent).prompt_hash,
        "search": describe_search(recipe.mcts),
        "labels": recipe.scheme.describe(),
        "min_gap": recipe.pairs.min_gap,
        "min_outcomes": recipe.pairs.min_outcomes,
        "chosen": "".join(f"; `{name}: {value}`" for name, value in filters.items()),
    }
    count = Counter((row["source"], row["licence"] or "not stated") for row in licences.to_pylist())
    sources = (
        f"| {markdown_cell(source)} | {n} | {markdown_cell(licence)} |"
        for (source, licence), n in sorted(count.items())
    )
    tables = [table for table in ("pairs", "trees", "questions") if manifest.of(table)]
    card = template.format(
        sources="\n".join(sources),
        configs="\n".join(_config(t, manifest, is_default=t == tables[0]) for t in tables),
        first=tables[0],
        **{name: terminal_safe(str(fact)) for name, fact in facts.items()},
    )
    atomic_write_text(run.folder / "README.md", card)


def _config(table: str, manifest: Manifest, *, is_default: bool) -> str:
    """Returns the entry of a table for the package `datasets`."""
    files = "\n".join(f"  - {part.path}" for part in manifest.of(table))
    default = "  default: true\n" if is_default else ""
    return f"- config_name: {table}\n{default}  data_files:\n{files}"


def describe_search(search: SearchSettings) -> str:
    """Describes the search in one line."""
    most = search.max_output_tokens
    until = f", until {most:,} tokens are generated" if most is not None else ""
    if isinstance(search, ChainSettings):
        branches = f", {search.branches} branches per state" if search.branches > 1 else ""
        return f"{search.iterations} independent chains{branches}{until}"
    assert isinstance(search, TreeSettings)
    return (
        f"{search.iterations} iterations, up to {search.max_children} children, "
        f"{search.selection}, evaluator {search.evaluator}{until}"
    )
