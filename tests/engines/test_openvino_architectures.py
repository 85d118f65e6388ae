"""The embedded engine computes what transformers computes, for every supported architecture."""

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from tiny_models import KINDS, TEMPLATE, tiny_tokenizer, write_tiny_model

from branchwise.engines.embedded.openvino import OpenVINOEngine, embedded_engine
from branchwise.engines.sampling import CallIdentity, Completion, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.types import Message
from branchwise.weights.chat_template import prompt_ids
from branchwise.weights.gguf import ROWS_ARE_INTERLEAVED, Precision, export_gguf
from branchwise.weights.policies import load_policy, policy_files

pytestmark = pytest.mark.model

NEW_TOKENS = 12
ASKED = (
    "Which currency is used in the country of Åbo?",
    "List 3 facts, numbered, about 1234567.\n\n  Then stop.",
    "def distance(a, b): return HE'S(a)  -  b",
    "The cafe\u0301 in 北京 isn't far.",
    "What is the capital of the country whose river runs through the capital?",
    "<b>Yes</b> or no, and why\r\n\tnot?",
)


def requests() -> list[SampleRequest]:
    greedy = Sampling(temperature=0, top_p=1, max_new_tokens=NEW_TOKENS)
    return [
        SampleRequest((Message("user", text),), greedy, CallIdentity("policy", f"q{i}", "test"))
        for i, text in enumerate(ASKED)
    ]


async def completions(engine: OpenVINOEngine) -> list[Completion]:
    async with engine:
        return list(await asyncio.gather(*map(engine.sample, requests())))


@dataclass(frozen=True)
class Reference:
    """Log-probabilities that transformers gives to the tokens that an engine wrote.

    Attributes:
        written: Log-probability of the token that the engine wrote.
        best: Highest log-probability of any token.
    """

    written: Any
    best: Any


def reference_of(model: Any, answers: list[Completion]) -> Reference:
    import torch

    written, best = [], []
    for answer in answers:
        prompt, ids = list(answer.prompt_ids or ()), list(answer.token_ids or ())
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        scores = logits.float().log_softmax(-1)
        written.append(scores[torch.arange(len(ids)), ids])
        best.append(scores.max(-1).values)
    return Reference(torch.cat(written), torch.cat(best))


def disagreement(model: Any, answers: list[Completion]) -> float:
    """Largest difference in nats between the engine's and transformers' log-probabilities.

    Also counts how much less likely the written tokens are than transformers' best ones, so it is
    small only if the engine writes the greedy text.
    """
    import torch

    theirs = reference_of(model, answers)
    ours = torch.tensor([one for answer in answers for one in answer.logprobs or ()])
    wrong = (ours - theirs.written).abs().max(), (theirs.best - theirs.written).max()
    return max(map(float, wrong))


def write_adapter(model: Any, folder: Path, base: str) -> None:
    """Writes a policy folder with a random adapter on all linear layers."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(str(folder / "adapter"))
    (folder / "training.json").write_text(json.dumps({"base": base, "chain": []}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "error"), [("f16", 0.02), ("q8_0", 0.2)])
async def test_model_folders_and_adapters_agree_with_transformers(
    kind: str, precision: Precision, error: float, cache: Path
) -> None:
    write_tiny_model(cache / "base", kind)
    base, tokenizer = load_policy(policy_files(str(cache / "base")))
    write_adapter(load_policy(policy_files(str(cache / "base")))[0], cache / "trained", "../base")
    trained, _ = load_policy(policy_files(str(cache / "trained")))
    for name, model, other in (("base", base, trained), ("trained", trained, base)):
        engine = embedded_engine(ModelSettings(model=str(cache / name), precision=precision))
        answers = await completions(engine)
        for text, answer in zip(ASKED, answers, strict=True):
            turns = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(turns, return_dict=False)
            assert list(answer.prompt_ids or ()) == prompt
        assert disagreement(model, answers) < error
        assert disagreement(other, answers) > 10 * error, "the adapter must change the replies"


async def test_prompts_contain_the_template_bos_token_once(cache: Path) -> None:
    write_tiny_model(cache / "base", "llama")
    tokenizer = tiny_tokenizer("llama")
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.chat_template = "{{ bos_token }}" + TEMPLATE + "{{ eos_token }}"
    tokenizer.save_pretrained(str(cache / "base"))
    _, tokenizer = load_policy(policy_files(str(cache / "base")))
    engine = embedded_engine(ModelSettings(model=str(cache / "base"), precision="f16"))
    for text, answer in zip(ASKED, await completions(engine), strict=True):
        turns = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(turns, return_dict=False)
        assert (prompt.count(tokenizer.bos_token_id), prompt[-1]) == (1, tokenizer.eos_token_id)
        assert list(answer.prompt_ids or ()) == prompt
        assert list(prompt_ids([Message("user", text)], tokenizer)) == prompt


async def test_an_adapter_on_a_gguf_file_agrees_with_transformers(cache: Path) -> None:
    for kind in KINDS:
        folder, file = cache / kind, cache / f"{kind}.gguf"
        sizes = {"head_dim": 128} if kind == "qwen3" else {}  # transformers expects it in a GGUF
        export_gguf(write_tiny_model(folder, kind, **sizes), folder, file, "f16")
        write_adapter(load_policy(policy_files(str(file)))[0], cache / "trained", f"../{file.name}")
        trained, _ = load_policy(policy_files(str(cache / "trained")))
        engine = embedded_engine(ModelSettings(model=str(cache / "trained"), precision="f16"))
        assert disagreement(trained, await completions(engine)) < 0.02


async def test_wrong_row_order_and_lost_biases_cause_disagreement(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in KINDS:
        model = write_tiny_model(cache / kind, kind)
        with monkeypatch.context() as patch:
            patch.setitem(ROWS_ARE_INTERLEAVED, kind, kind != "llama")
            export_gguf(model, cache / kind, cache / "rows.gguf", "f16")
        assert disagreement(model, await answers_of(cache / "rows.gguf")) > 0.5
    qwen2 = write_tiny_model(cache / "qwen2", "qwen2")
    biases = {name for name in qwen2.state_dict() if name.endswith("bias")}
    assert len(biases) == 2 * 3
    for dropped in ("q_proj", "k_proj", "v_proj"):
        lacking = write_tiny_model(cache / "qwen2", "qwen2")
        lacking.load_state_dict(
            {n: w * (f"{dropped}.bias" not in n) for n, w in qwen2.state_dict().items()}
        )
        export_gguf(lacking, cache / "qwen2", cache / "bias.gguf", "f16")
        assert disagreement(qwen2, await answers_of(cache / "bias.gguf")) > 0.5


async def answers_of(file: Path) -> list[Completion]:
    return await completions(OpenVINOEngine(file, model="m", digest=""))


@pytest.mark.skipif(
    not os.environ.get("BRANCHWISE_TEST_QWEN"),
    reason="set BRANCHWISE_TEST_QWEN to a GGUF file of a Qwen model",
)
async def test_a_real_model_agrees_with_transformers(cache: Path) -> None:
    base, precisions = os.environ["BRANCHWISE_TEST_QWEN"], get_args(Precision)
    model, _ = load_policy(policy_files(base))
    for precision, error in zip(precisions, (0.1, 1.0), strict=True):
        engine = embedded_engine(ModelSettings(model=base, precision=precision))
        assert disagreement(model, await completions(engine)) < error
