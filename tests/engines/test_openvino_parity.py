"""The embedded engine and transformers write the same text for the same messages and weights."""

import asyncio
import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from branchwise.agent.reasonrag import ReasonRAG
from branchwise.agent.state import Action, State, Step
from branchwise.engines.embedded.openvino import OpenVINOEngine, embedded_engine
from branchwise.engines.sampling import CallIdentity, Completion, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message, RetrievedPassage
from branchwise.weights.gguf import ROWS_ARE_INTERLEAVED, export_gguf
from branchwise.weights.policies import (
    PACKAGED,
    load_policy,
    packaged_gguf,
    policy_digest,
    policy_files,
)

pytestmark = pytest.mark.model

NEW_TOKENS = 24
LORA_SCALE = 0.2
PLACES = ("Lima", "Åbo", "São Tomé", "北京", "Nuku'alofa", "Saint John's", "Γιαννιτσά")
QUESTIONS = (
    "Which currency is used in the country of {}?",
    "What is the internet domain of the country whose capital is {}?",
    "Who founded {}, and when?",
    "Was {} ever the capital of its country? Answer yes or no.",
)
TASKS = (
    "Write a haiku about {}.",
    "Translate to French: 'The train to {} leaves at 12:45.'",
    'def distance(a, b):\n    """Kilometres from {} to b."""\n',
    "List three facts, numbered, about {}.",
    "{}",
    "Is 1234567 + 7654321 = 8888888?  \t  Say why.\n\n{}",
)


def conversations() -> list[tuple[Message, ...]]:
    """Returns 50 prompts: ReasonRAG's four prompts on made-up states, and free conversation."""
    protocol = ReasonRAG()
    prompts = [
        protocol.messages(state, last=forced)
        for i, place in enumerate(PLACES)
        for state, forced in states(place, QUESTIONS[i % len(QUESTIONS)].format(place))
    ]
    for i in range(50 - len(prompts)):
        text = TASKS[i % len(TASKS)].format(PLACES[i % len(PLACES)])
        system = (Message("system", "Answer in one short sentence."),) if i % 3 else ()
        earlier = (Message("user", "Hi!"), Message("assistant", "Hello."))
        prompts.append((*system, *(earlier if i % 4 == 0 else ()), Message("user", text)))
    return prompts


def states(place: str, question: str) -> list[tuple[State, bool]]:
    passages = tuple(
        RetrievedPassage(id=f"{place}-{k}", title=f"{place} ({k})", text=text, score=1.0 / k)
        for k, text in enumerate((f"{place} is a <b>city</b> of 34,006 people.", "See also."), 1)
    )
    asked = Step("reasoning", "", Action("query", f"country of {place}"), passages=passages)
    found = Step("grounding", "", Action("evidence", f"{place} is a city."))
    first = State(question)
    grounding = first.after(asked, "grounding")
    reasoning = grounding.after(found, "reasoning")
    return [(first, False), (grounding, False), (reasoning, False), (reasoning, True)]


@dataclass(frozen=True)
class Reference:
    """Results of transformers in float32: token ids of prompts and of greedy replies."""

    model: Any
    tokenizer: Any
    prompts: list[list[int]]
    outputs: list[list[int]]

    def agreement(self, completions: list[Completion], tokens: int = NEW_TOKENS) -> float:
        """Returns the share of completions whose first `tokens` tokens are the same."""
        # Not strict: there may be fewer completions than prompts.
        pairs = zip(self.outputs, completions, strict=False)
        same = [ours[:tokens] == list(c.token_ids or ())[:tokens] for ours, c in pairs]
        return sum(same) / len(same)


@pytest.fixture(scope="module")
def reference() -> Reference:
    model, tokenizer = load_policy(policy_files(PACKAGED))
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.content} for m in messages],
            add_generation_prompt=True,
            return_dict=False,
        )
        for messages in conversations()
    ]
    return Reference(model, tokenizer, prompts, greedy(model, tokenizer, prompts))


def greedy(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Returns the token ids that transformers writes greedily, in one batch."""
    import torch

    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    with torch.inference_mode():
        written = model.generate(**batch, max_new_tokens=NEW_TOKENS, do_sample=False)
    width = batch["input_ids"].shape[1]
    return [_to_end(row[width:].tolist()) for row in written]


def _to_end(ids: list[int], end: int = 2) -> list[int]:
    """Returns tokens up to and including the end of the turn, without the padding."""
    return ids[: ids.index(end) + 1] if end in ids else ids


def requests() -> list[SampleRequest]:
    greedy = Sampling(temperature=0, top_p=1, max_new_tokens=NEW_TOKENS)
    return [
        SampleRequest(messages, greedy, CallIdentity("policy", f"q{i}", "test"))
        for i, messages in enumerate(conversations())
    ]


async def answers(engine: OpenVINOEngine, asked: list[SampleRequest]) -> list[Completion]:
    return await asyncio.gather(*(engine.sample(request) for request in asked))


async def test_f16_agrees_with_transformers(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    async with embedded_engine(ModelSettings(model="packaged", precision="f16")) as engine:
        assert [list(engine.prompt_ids(request)) for request in requests()] == reference.prompts
        completions = await answers(engine, requests())
    assert reference.agreement(completions) >= 0.98
    assert reference.agreement(completions, tokens=1) >= 0.98
    texts = [reference.tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in completions]
    assert [c.text for c in completions] == texts


@pytest.mark.long
async def test_exported_weights_agree_only_if_their_rows_are_permuted(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for permute, asked in ((True, requests()), (False, requests()[:20])):
        file = tmp_path / f"{permute}.gguf"
        monkeypatch.setitem(ROWS_ARE_INTERLEAVED, "llama", permute)
        export_gguf(reference.model, packaged_gguf(), file, "f16")
        async with OpenVINOEngine(file, model="export", digest="") as engine:
            agreement = reference.agreement(await answers(engine, asked))
        assert agreement >= 0.98 if permute else agreement < 0.5


async def test_a_chain_of_adapters_is_applied_and_cached(
    reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    adapted = make_chain(reference.model, tmp_path)
    written = greedy(adapted, reference.tokenizer, reference.prompts[:6])
    settings = ModelSettings(model=str(tmp_path / "dpo"), precision="f16")
    async with embedded_engine(settings) as engine:
        completions = await answers(engine, requests()[:6])
    assert Reference(adapted, None, [], written).agreement(completions) == 1
    assert reference.agreement(completions) < 0.5  # the adapters must change the replies
    # A second start reads the cache; another chain is another policy.
    monkeypatch.setattr(
        "branchwise.weights.policy_gguf.load_policy", lambda *_: pytest.fail("not cached")
    )
    assert embedded_engine(settings).digest == engine.digest
    assert policy_digest(policy_files(str(tmp_path / "warm-start")), "f16") != engine.digest


def make_chain(base: Any, folder: Path) -> Any:
    """Writes adapter "warm-start" and, on top of it, "dpo" to `folder`; returns the merged model.

    Random adapters at full scale produce noise in which rounding to F16 decides many tokens. Then
    even transformers with rounded weights agrees with itself on only half of the prompts.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = copy.deepcopy(base)
    for name, chain in (("warm-start", []), ("dpo", ["../warm-start/adapter"])):
        lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        adapted = get_peft_model(model, lora)
        with torch.no_grad():
            for weight_name, weight in adapted.named_parameters():
                if "lora_B" in weight_name:
                    weight.mul_(LORA_SCALE)
        adapted.save_pretrained(folder / name / "adapter")
        record = {"base": "packaged", "chain": chain}
        (folder / name / "training.json").write_text(json.dumps(record))
        model = adapted.merge_and_unload()
    return model
