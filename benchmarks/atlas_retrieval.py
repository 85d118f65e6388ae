"""How hard is the atlas for BM25?

    python -m benchmarks.atlas_retrieval --questions 400

Prints two shares over questions of the test split and the whole corpus: questions whose supporting
passages are all in the top 3 of one search with the question itself (a 2-hop question should need
two searches), and query wordings of a hop that find its passage.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from branchwise.retrieval.index import open_retriever
from branchwise.retrieval.interface import Retriever
from branchwise.retrieval.settings import RetrievalSettings
from branchwise.sources.atlas import build_corpus, build_questions
from branchwise.types import Question

TOP_K = 3


async def measure(questions: Sequence[Question], retriever: Retriever) -> None:
    """Prints both tables."""
    by_kind: Mapping[str, list[float]] = defaultdict(list)
    by_hop: Mapping[str, list[float]] = defaultdict(list)
    for question in questions:
        hits = await _search_ids(retriever, question.question)
        kind = f"{question.type} {question.hops}"
        by_kind[kind].append(float(set(question.supporting_ids) <= hits))
        for place, hop in enumerate(question.extra["hops"]):
            for query in hop["queries"]:
                hit = hop["passage_id"] in await _search_ids(retriever, query)
                by_hop[f"hop {place + 1}"].append(float(hit))
                by_hop["bare name" if query == hop["title"] else "name and relation"].append(hit)
    _print("all supporting passages in the top 3 of the question", by_kind)
    _print("the hop's passage in the top 3 of its own query", by_hop)


async def _search_ids(retriever: Retriever, query: str) -> set[str]:
    return {passage.id for passage in await retriever.search(query, TOP_K)}


def _print(title: str, shares: Mapping[str, list[float]]) -> None:
    print(f"\n{title}")
    for name, values in sorted(shares.items()):
        print(f"  {name:<22}{len(values):>6}{fmean(values):>8.3f}")


def main() -> None:
    """Reads arguments and measures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--questions", type=int, default=400)
    count = arguments.parse_args().questions
    questions = [q for q in build_questions("test", count) if q.answerable]
    asyncio.run(measure(questions, open_retriever(RetrievalSettings(), build_corpus())))


if __name__ == "__main__":
    main()
