"""Token counts of a call: from the endpoint, or our own if it reports none that are usable.

A limit in tokens or dollars is only as good as its counts. A count is unusable if it is missing,
negative, not a number, zero for a text that is not empty, or absurdly large. We then count here:
with the model's tokenizer if its files are on this machine, otherwise with an upper estimate.
Input and output counts are checked separately. `Usage.basis` records the source.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from branchwise.base import replace_surrogates
from branchwise.weights import policy_files, rendered, tokenizer_of

from ..sampling import FinishReason, SampleRequest, Usage, UsageBasis

MOST_TOKENS = 10**9
"""Largest credible count."""
MESSAGE_TOKENS = 16
"""Upper estimate of a chat template's tokens per message: role and special tokens."""
TEMPLATE_TOKENS = 64
"""Upper estimate of a chat template's other tokens: default system prompt, date, start of turn."""
SMALLEST_CONTEXT = 512
"""Fewest tokens to which a server cuts a prompt."""
END_TOKENS = 1
"""The end-of-turn token."""


def usage_of(
    reported: Any, request: SampleRequest, text: str, finish: FinishReason, counter: "TokenCounter"
) -> Usage:
    """Returns the usage of a call; `counter` replaces unusable entries of `reported`.

    Unusable counts of cached tokens become 0, which is the more expensive assumption.
    """
    counts = reported if isinstance(reported, dict) else {}
    prompt = _count(counts.get("prompt_tokens"), least=1)
    output = _count(counts.get("completion_tokens"), least=1 if text else 0)
    if prompt is not None and output is not None:
        # Some endpoints (xAI, gateways to Gemini) count reasoning only in the total.
        total = _count(counts.get("total_tokens"), least=prompt + output)
        output = output if total is None else total - prompt
        return Usage(prompt, cached_tokens(counts, prompt), output)
    return Usage(
        counter.prompt(request) if prompt is None else prompt,
        0 if prompt is None else cached_tokens(counts, prompt),
        counter.reply(request, text, finish) if output is None else output,
        counter.basis,
    )


def least_prompt_tokens(request: SampleRequest) -> int:
    """Returns a lower bound of the prompt's tokens: half of its words, or a 16th of its bytes.

    Tokenizers rarely join words, so a smaller count means that the server cut the prompt.
    """
    texts = [message.content for message in request.messages]
    return max(sum(len(text.split()) for text in texts) // 2, sum(map(_bytes, texts)) // 16)


def cached_tokens(reported: Any, prompt_tokens: int) -> int:
    """Returns the cached prompt tokens that a reply reports; 0 if it reports none."""
    details = reported.get("prompt_tokens_details") if isinstance(reported, dict) else None
    cached = _count(details.get("cached_tokens"), least=0) if isinstance(details, dict) else None
    return cached if cached is not None and cached <= prompt_tokens else 0


def _count(value: Any, *, least: int) -> int | None:
    """Returns a usable number of tokens; None if it is missing or out of bounds."""
    if isinstance(value, float) and value.is_integer():  # NaN and infinities are not
        value = int(value)
    # A bool is an int in Python, but not a count.
    usable = type(value) is int and least <= value <= MOST_TOKENS
    return value if usable else None


class TokenCounter:
    """Counts the tokens that an endpoint does not report.

    Without a tokenizer, counts are upper estimates. A token encodes at least one byte of UTF-8, so
    a text has at most as many tokens as bytes. `MESSAGE_TOKENS` and `TEMPLATE_TOKENS` bound the
    chat template's own tokens. With a transformers tokenizer, the prompt rendered by its chat
    template is counted.

    Attributes:
        weights: Name of the model's weights, which include the tokenizer; None if unknown.
        tokenizer: The tokenizer; None until `load_tokenizer` has found one.
        settled: Whether the search for a tokenizer is done.
    """

    def __init__(self, weights: str | None = None, tokenizer: Any = None) -> None:
        self.weights = weights
        self.tokenizer = tokenizer
        self.settled = False
        self._search: asyncio.Task[Any] | None = None

    @property
    def basis(self) -> UsageBasis:
        return "bytes" if self.tokenizer is None else "tokenizer"

    def prompt(self, request: SampleRequest) -> int:
        """Returns the number of tokens in the prompt."""
        texts = [f"{message.role}{message.content}" for message in request.messages]
        if self.tokenizer is None:
            if request.structure is not None and request.structure.kind == "json_schema":
                texts.append(request.structure.value)  # some vendors add it to the prompt
            return sum(map(_bytes, texts)) + MESSAGE_TOKENS * len(texts) + TEMPLATE_TOKENS
        template = getattr(self.tokenizer, "chat_template", None)
        if isinstance(template, str):
            # A template may reject a system turn, or fail. The reply must not be lost.
            with suppress(Exception):
                special_tokens = self.tokenizer.special_tokens_map
                return self._tokens(
                    rendered(template, request.messages, special_tokens=special_tokens)
                )
        return sum(map(self._tokens, texts)) + MESSAGE_TOKENS * len(texts)

    def reply(self, request: SampleRequest, text: str, finish: FinishReason) -> int:
        """Returns the number of tokens in the completion."""
        limit = request.sampling.max_new_tokens
        if self.tokenizer is None:
            # It may have cost more than its text shows (reasoning), but never more than the limit.
            return max(_bytes(text) + END_TOKENS, limit)
        tokens = self._tokens(text) + END_TOKENS
        # A truncated text used all requested tokens; an empty text may have used as many.
        return tokens if text and finish != "length" else max(tokens, limit)

    async def load_tokenizer(self, log_basis: Callable[[str], None]) -> None:
        """Loads the tokenizer, once; then passes the basis of later counts to `log_basis`."""
        if self._search is None:
            # Use a thread, because importing the tokenizer packages takes seconds.
            self._search = asyncio.create_task(asyncio.to_thread(_local_tokenizer, self.weights))
        tokenizer = await asyncio.shield(self._search)
        if self.settled:
            return
        self.tokenizer, self.settled = tokenizer, True
        if tokenizer is None:
            log_basis(
                "its tokens are overestimated from the bytes of prompt and reply (for closer "
                "counts, set `weights` in its block of the recipe to the model's files)"
            )
        else:
            log_basis(f"its tokens are counted locally with the tokenizer of {self.weights}")

    def _tokens(self, text: str) -> int:
        plain = replace_surrogates(text)
        return len(self.tokenizer(plain, add_special_tokens=False, verbose=False)["input_ids"])


def _local_tokenizer(weights: str | None) -> Any:
    """Returns the tokenizer of weights with this name, or None; may take seconds.

    Nothing is downloaded: a hub model counts with its tokenizer only if that is on this machine.
    """
    if weights is None:
        return None
    # Tokenizer loaders may raise any error, and a paid reply waits for its counts.
    with suppress(Exception):
        return tokenizer_of(policy_files(weights, download=False).base)
    return None


def _bytes(text: str) -> int:
    return len(replace_surrogates(text).encode())
