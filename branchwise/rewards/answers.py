"""Scores of a final answer: exact match, F1, cover-EM, and supporting-passage recall.

Source: the evaluation scripts of SQuAD 1.1 and 2.0 (normalisation, multiset F1, the rule for
empty answers) and of HotpotQA (the yes/no rule). Two additions: underscores become spaces, and a
yes/no gold counts as contained in no text.

Reported scores compare SQuAD's normal forms, which are equal for some different answers (3.14 and
314, C# and C). Rewards may compare `strict_form` instead.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from branchwise.base import comparable

NormalForm = Callable[[str], str]
"""Answer → form in which answers are compared."""

CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
"""Answers that get no partial credit (HotpotQA's rule)."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str, *, keep_articles: bool = False) -> str:
    """Returns SQuAD's normal form: lower case, no punctuation, no articles, single spaces.

    Args:
        text: Any string.
        keep_articles: Whether to keep a, an and the (ReasonRAG's published code does).
    """
    plain = text.lower().replace("_", " ").translate(_PUNCTUATION)
    if not keep_articles:
        plain = _ARTICLES.sub(" ", plain)
    return " ".join(plain.split())


_STRICT_STEPS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\w)(\*+|__+)(?=\S)(.+?)(?<=\S)\1(?!\w)", r"\2"),  # **Paris**, but not 2*3*4
        (r"(?<!\w)([\"'])(.*?)\1(?!\w)", r" \2 "),  # "Heroes", before 5' and 5" are left
        (r"(?<=\d),(?=(?:\d\d,)*\d{3}(?!\d))", ""),  # 1,000; in India 1,00,000
        (r"(?<=\d) ?- ?(?=\d)", "-"),  # 1939 - 1945
        (r"(?<=\w) ?/ ?(?=\w)", "/"),  # AC / DC
        (r"(?<=\d) (?=[%°])|(?<=[$€£¥]) (?=\d)", ""),  # 5 %, $ 5
        (r"[()\[\]{};?¿¡|\\_…]|!(?![=\w])|(?<!\w)/|/(?!\w)|(?<!\d)\"", " "),  # not !=
        (r"(?<!\d)[,:](?!=)|[,:](?![\d=])", " "),  # not 10:30, :=
        (r"(?<=[^\W\d])-(?=\w)|(?<=\d)-(?=[^\W\d])|(?<!\S)-+(?!\S)", " "),  # not -5, A-, -v
        (r"(?<=[^\W\d])\.|(?<=\S)\.(?!\d)|(?<!\S)\.(?!\w)", ""),  # U.S., not 3.14, .5, .NET
        (r"(?<!\d)'|(?<!\w)\+(?=\d)", ""),  # O'Neill, +5
    )
)
_ARTICLE_BEFORE_WORD = re.compile(r"\b(a|an|the) (?=\w)")


def strict_form(text: str, *, keep_articles: bool = False) -> str:
    """Returns a normal form that differs for answers that differ in meaning.

    As SQuAD's, it ignores case, articles before a word, quotation marks and punctuation between
    words. It keeps what belongs to a number or name: decimal points, signs, ranges, units and
    symbols (3.14, -5, 1939-1945, 50%, 5', C#, A-, .NET, AC/DC, Vitamin A). Spellings that are
    `comparable` are equal, and so are 1,000 and 1000, twenty-one and twenty one, U.S. and US.

    Args:
        text: Any string.
        keep_articles: Whether to keep all of a, an and the.
    """
    plain = folded = comparable(text)
    for pattern, replacement in _STRICT_STEPS:
        plain = pattern.sub(replacement, plain)
    plain = " ".join(plain.split())
    if not keep_articles:
        plain = _ARTICLE_BEFORE_WORD.sub("", plain)
    return plain or folded


def is_ambiguous(answer: str) -> bool:
    """Returns whether SQuAD's normal form of an answer is also that of an answer with another
    meaning.
    """
    before, after = (strict_form(form).replace(" ", "") for form in (answer, normalise(answer)))
    return before != after


def exact_match(prediction: str, golds: Iterable[str], form: NormalForm = normalise) -> float:
    """Returns 1.0 if the prediction equals a gold answer in normal form, else 0.0."""
    predicted = form(prediction)
    return float(any(predicted == form(gold) for gold in golds))


def f1(prediction: str, golds: Iterable[str], form: NormalForm = normalise) -> float:
    """Returns the token-multiset F1 in [0, 1], the best over the golds; 0.0 without golds.

    A yes/no prediction or gold must equal the other side (HotpotQA). If either side is empty after
    normalisation, the score is 1.0 if both are, else 0.0 (SQuAD 2.0), so an exact match always
    scores 1.0 here.
    """
    predicted = form(prediction)
    return max((_token_f1(predicted, form(gold)) for gold in golds), default=0.0)


def contains(text: str, golds: Iterable[str], form: NormalForm = normalise) -> bool:
    """Returns whether a gold's tokens occur in the text, side by side and in order.

    Ignores yes/no golds and golds without a token, because nearly any long text would contain them.
    """
    words = f" {form(text)} "
    normal = map(form, golds)
    return any(gold and gold not in CLOSED_ANSWERS and f" {gold} " in words for gold in normal)


def cover_em(prediction: str, golds: Iterable[str], form: NormalForm = normalise) -> float:
    """Returns 1.0 if the prediction equals or contains a gold, else 0.0; so never below EM."""
    golds = tuple(golds)
    is_equal = exact_match(prediction, golds, form) == 1.0
    return float(is_equal or contains(prediction, golds, form))


def supporting_recall(retrieved_ids: Iterable[str], supporting_ids: Sequence[str]) -> float | None:
    """Returns the retrieved share of the gold documents, in [0, 1]; None without known ones."""
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


def token_overlap(first: str, second: str) -> float:
    """Returns the Jaccard similarity of two texts' normalised tokens, in [0, 1]."""
    a, b = (set(normalise(text).split()) for text in (first, second))
    return len(a & b) / len(a | b) if a | b else 1.0


YES_NO = frozenset({"yes", "no"})


def guessable(question: str, answers: Iterable[str]) -> bool:
    """Returns whether a gold answer is yes or no, or is in the question itself.

    "Who is older, Ada Lovelace or Mary Shelley?" leaves two answers to choose from. A question
    contains a gold if it has the gold's normalised tokens, side by side and in order. Such
    questions do not measure search well, so tables list them separately.

    Args:
        question: Text of the question.
        answers: All golds; one that can be guessed is enough.
    """
    golds = tuple(answers)
    return any(normalise(gold) in YES_NO for gold in golds) or cover_em(question, golds) == 1.0
