"""Chat templates: what they may use, and those of untrusted models."""

from copy import copy
from importlib.metadata import distribution
from pathlib import Path

import pytest

from branchwise.base.errors import ConfigError
from branchwise.types import Message
from branchwise.weights.chat_template import prompt_ids, rendered
from branchwise.weights.policies import packaged_gguf, tokenizer_of


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ messages[99]['content'] }}",
        "{{ messages + 1 }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{% broken",
        "{{ 'x' * 'y' }}",
    ],
)
def test_a_failing_template_is_reported(template: str) -> None:
    with pytest.raises(ConfigError, match="the model's chat template"):
        rendered(template, (Message("user", "Who?"),), special_tokens={})


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ date_string }}", "26 Jul 2024"),
        ("{{ strftime_now('%d %B %Y') }}", "26 July 2024"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Où?"}]'),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
    ],
)
def test_templates_get_the_functions_of_transformers_and_a_fixed_date(
    template: str, text: str
) -> None:
    assert rendered(template, (Message("user", "Où?"),), special_tokens={}) == text


def test_the_reason_that_a_template_gives_is_shown() -> None:
    with pytest.raises(ConfigError, match="rejects the messages: no system role"):
        rendered("{{ raise_exception('no system role') }}", (), special_tokens={})


def test_qwen3_is_told_not_to_think_in_prompts_and_in_training() -> None:
    tokenizer = copy(tokenizer_of(packaged_gguf()))
    file = distribution("trl").locate_file("trl/chat_templates/qwen3.jinja")  # Qwen's own
    tokenizer.chat_template = Path(str(file)).read_text(encoding="utf-8")
    messages = (Message("system", "Search."), Message("user", "Who?"))
    tokens = tokenizer.special_tokens_map
    off, on = (
        rendered(tokenizer.chat_template, messages, special_tokens=tokens, thinking=thinking)
        for thinking in (False, True)
    )
    assert off == f"{on}<think>\n\n</think>\n\n"
    by_transformers = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    assert prompt_ids(messages, tokenizer) == tuple(by_transformers)
    # A thought of an earlier turn does not return in the prompt.
    later = (
        *messages,
        Message("assistant", "<think>Hm.</think>\n\nAda."),
        Message("user", "When?"),
    )
    assert "Hm." not in rendered(tokenizer.chat_template, later, special_tokens=tokens)
