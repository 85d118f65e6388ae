"""Converts messages to the text and the tokens that a model was trained to continue."""

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import takewhile
from typing import Any

from branchwise.base import ConfigError, replace_surrogates
from branchwise.types import Message

TODAY = date(2024, 7, 26)
"""Date for templates that insert one (the default of Llama 3's). The actual date would change
prompts from day to day, and between annotation and training."""


def template_values(*, thinking: bool = False) -> dict[str, Any]:
    """Returns values for templates, also to be sent to servers that take them.

    Args:
        thinking: Whether the model may think before it replies, if its template has a switch: Qwen3
            calls it `enable_thinking`, DeepSeek and Granite `thinking`. Trainings never let it.
    """
    return {
        "date_string": TODAY.strftime("%d %b %Y"),
        "enable_thinking": thinking,
        "thinking": thinking,
    }


def rendered(
    template: str,
    messages: tuple[Message, ...],
    prefix: str = "",
    *,
    special_tokens: Mapping[str, str],
    thinking: bool = False,
) -> str:
    """Returns the prompt: `messages` in a Jinja chat template, then the assistant's started turn.

    Args:
        template: Jinja chat template.
        messages: Messages before the started turn.
        prefix: Text of the started turn.
        special_tokens: The tokenizer's tokens that a template may insert: "bos_token", "eos_token".
            The caller encodes the prompt without adding any.
        thinking: See `template_values`.

    Raises:
        ConfigError: If jinja2 is missing, or the template rejects the messages.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    turns = [{"role": m.role, "content": m.content} for m in messages]
    try:
        # transformers' public functions do not let a caller fix the date.
        text = _compile_jinja_template(template).render(
            special_tokens,
            messages=turns,
            add_generation_prompt=True,
            strftime_now=TODAY.strftime,
            **template_values(thinking=thinking),
        )
    except TemplateError as error:
        raise ConfigError(f"the model's chat template rejects the messages: {error}") from error
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the model's chat template cannot be used ({type(error).__name__}: {error})"
        ) from error
    return replace_surrogates(text + prefix)  # UTF-8, for the tokenizer, excludes lone surrogates


def prompt_ids(messages: Sequence[Message], tokenizer: Any) -> tuple[int, ...]:
    """Returns the token ids of a prompt, the same as in the embedded engine.

    Assistant messages at the end are the parts of a started turn, as in
    `engines.sampling.SampleRequest.prefix`: only the first is encoded with the template.
    """
    turn = [m.content for m in takewhile(lambda m: m.role == "assistant", reversed(messages))]
    before = tuple(messages[: len(messages) - len(turn)])
    first, *continuations = reversed(turn) if turn else ("",)
    special_tokens = tokenizer.special_tokens_map
    begun = rendered(tokenizer.chat_template, before, first, special_tokens=special_tokens)
    return tuple(i for text in (begun, *continuations) for i in _encoded(text, tokenizer))


def target_ids(
    target: str, tokenizer: Any, stops: tuple[str, ...] = (), *, cut: bool = False
) -> tuple[int, ...]:
    """Returns the token ids of a policy's text, including the end-of-turn token.

    Args:
        target: Text of the policy.
        tokenizer: The model's tokenizer.
        stops: Strings at which engines stop generation; a text with such an end gets no
            end-of-turn token.
        cut: Whether generation ended at the token limit, so before an end-of-turn token.
    """
    ids = _encoded(target, tokenizer)
    return ids if cut or target.endswith(stops) else (*ids, int(tokenizer.eos_token_id))


def _encoded(text: str, tokenizer: Any) -> tuple[int, ...]:
    return tuple(tokenizer(replace_surrogates(text), add_special_tokens=False)["input_ids"])
