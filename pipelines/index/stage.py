"""`make index`: builds the index; every stage that needs it also does so on demand."""

from branchwise.retrieval import open_retriever
from branchwise.runs import StageContext, StageResult, open_data


def index(context: StageContext) -> StageResult:
    """Builds the index of the recipe's corpus if it does not exist."""
    material = open_data(context.recipe)
    index_name = f"{context.recipe.retrieval.kind} index of {len(material.passages):,} passages"
    if context.dry_run:
        context.log(f"index: the {index_name} would be built, or found built")
        return StageResult({"passages": len(material.passages), "dry_run": True})
    passages = list(material.passages)
    retriever = open_retriever(context.recipe.retrieval, passages, log=context.log)
    context.log(f"{index_name} is ready")
    return StageResult({"passages": len(material.passages), "index_digest": retriever.digest})
