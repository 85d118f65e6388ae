"""Scores of a final answer: exact match, F1, cover-EM, and supporting-passage recall.

Source: the evaluation scripts of SQuAD 1.1 and 2.0 (normalisation, multiset F1, the rule for
empty answers) and of HotpotQA (the yes/no rule). Two additions: underscores become spaces, and
no text contains a yes/no gold.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
"""Answers that share no credit with any other (HotpotQA's rule)."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str, *, keep_articles: bool = False) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces.

    Args:
        text: any string.
        keep_articles: leave a, an and the in place (ReasonRAG's published code does).
    """
    plain = text.lower().replace("_", " ").translate(_PUNCTUATION)
    if not keep_articles:
        plain = _ARTICLES.sub(" ", plain)
    return " ".join(plain.split())


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 if the prediction equals a gold answer after normalisation, else 0.0."""
    predicted = normalise(prediction)
    return float(any(predicted == normalise(gold) for gold in golds))


def f1(prediction: str, golds: Iterable[str], *, keep_articles: bool = False) -> float:
    """Returns the token-multiset F1 in [0, 1], the best over the golds; 0.0 without golds.

    A yes/no prediction or gold counts only against its equal (HotpotQA). Where either side has
    no token left, the score is 1.0 if both have none, else 0.0 (SQuAD 2.0), so an exact match is
    always worth 1.0 here.
    """
    predicted = normalise(prediction, keep_articles=keep_articles)
    scores = (_token_f1(predicted, normalise(g, keep_articles=keep_articles)) for g in golds)
    return max(scores, default=0.0)


def contains(text: str, golds: Iterable[str]) -> bool:
    """Returns whether a gold's tokens occur in the text, side by side and in order.

    No text contains a yes/no gold or one without a token: nearly any long text would.
    """
    tokens = normalise(text).split()
    return any(_contains(tokens, normalise(gold)) for gold in golds)


def cover_em(prediction: str, golds: Iterable[str]) -> float:
    """1.0 if the prediction equals or contains a gold, else 0.0; so never below EM."""
    golds = tuple(golds)
    return float(exact_match(prediction, golds) == 1.0 or contains(prediction, golds))


def supporting_recall(retrieved_ids: Iterable[str], supporting_ids: Sequence[str]) -> float | None:
    """Returns the share of the gold documents that were retrieved, in [0, 1]; None if none is
    known.
    """
    supporting = set(supporting_ids)
    if not supporting:
        return None
    return len(supporting & set(retrieved_ids)) / len(supporting)


def _token_f1(predicted: str, gold: str) -> float:
    if predicted == gold:
        return 1.0
    if predicted in CLOSED_ANSWERS or gold in CLOSED_ANSWERS:
        return 0.0
    predicted_tokens, gold_tokens = predicted.split(), gold.split()
    shared = sum((Counter(predicted_tokens) & Counter(gold_tokens)).values())
    # 2PR / (P + R) with P = shared / |predicted| and R = shared / |gold|
    return 2 * shared / (len(predicted_tokens) + len(gold_tokens))


def _contains(tokens: list[str], gold: str) -> bool:
    wanted = gold.split()
    if not wanted or gold in CLOSED_ANSWERS:
        return False
    width = len(wanted)
    return any(tokens[i : i + width] == wanted for i in range(len(tokens) - width + 1))
