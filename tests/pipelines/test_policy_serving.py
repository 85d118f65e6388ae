"""Serving a policy in training with vLLM: the server has its adapter, or the training stops."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_vllm
import pytest

from branchwise.base.errors import EndpointError, TrainingError
from branchwise.engines.sampling import CallIdentity, SampleRequest, Sampling
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.command import VARIABLE
from branchwise.engines.vllm.served_weights import served_digest
from branchwise.engines.vllm.vllm_engine import server_for
from branchwise.pipelines.train_grpo.policy_serving import VllmServing, serving_for
from branchwise.runs.recipe import Recipe
from branchwise.training.grpo.canary import Canary, CanaryResult
from branchwise.types import Message

pytestmark = pytest.mark.model


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a fake vLLM, set in `BRANCHWISE_VLLM_PYTHON`, and of a start policy, `base`."""
    monkeypatch.setenv(VARIABLE, fake_vllm.install(tmp_path))
    fake_vllm.write_policy(tmp_path)
    return tmp_path


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


def settings(fake: Path, **changes: Any) -> ModelSettings:
    return ModelSettings(engine="vllm", model=str(fake / "base"), **changes)


def serving(fake: Path, **changes: Any) -> VllmServing:
    policy = settings(fake, **changes)
    recipe = Recipe(name="served", policy=policy, limits={"timeout_s": 20.0})  # type: ignore[arg-type]
    one = serving_for(recipe, fake / "serving", fake / "logs", lambda: None, print)
    assert isinstance(one, VllmServing)
    return one


def model(logit: float) -> Any:
    """Returns a minimal PEFT model whose adapter is one number, which the fake server reads."""
    import torch
    from safetensors.torch import save_file

    class OneNumber(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number = torch.nn.Parameter(torch.tensor([[logit]]))

        def forward(self, input_ids: Any, logits_to_keep: int, use_cache: bool) -> Any:
            self.logits = torch.zeros(1, logits_to_keep, fake_vllm.VOCABULARY)
            self.logits[..., fake_vllm.SAID] = self.number
            return self

        def save_pretrained(self, folder: str, state_dict: dict[str, Any]) -> None:
            Path(folder).mkdir(parents=True)
            config = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]}
            (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
            (number,) = state_dict.values()
            numbers = {"q_proj.lora_A.weight": number}
            save_file(numbers, Path(folder) / "adapter_model.safetensors")

    return OneNumber()


def new_canary() -> Canary:
    return Canary([(Message("user", "Lyon"),)], tolerance=0.01)


async def check(served: VllmServing, canary: Canary, logit: float) -> CanaryResult:
    async with served.serve(model(logit)) as engine:
        return await canary.check(engine, model(logit))


def starts(fake: Path) -> list[dict[str, str]]:
    words = [row["words"] for row in fake_vllm.kept(fake, "starts")]
    return [{"port": w[w.index("--port") + 1]} for w in words]


def adapters(fake: Path) -> list[tuple[str, str, int]]:
    rows = fake_vllm.kept(fake, "adapters")
    return [(row["verb"], row["lora_name"], row["life"]) for row in rows]


def test_one_server_loads_the_adapter_of_every_batch_under_its_digest(
    fake: Path, runner: asyncio.Runner
) -> None:
    served, canary, names = serving(fake), new_canary(), list[str]()

    async def batch(logit: float) -> CanaryResult:
        async with served.serve(model(logit)) as engine:
            names.append(f"branchwise-{engine.digest[:16]}")
            kept = shutil.copytree(engine.model, fake / "kept", dirs_exist_ok=True)
            trained = settings(fake).model_copy(update={"model": str(kept)})
            assert engine.digest == served_digest(trained), (
                "the digest should be that of a policy with this adapter"
            )
            return await canary.check(engine, model(logit))

    first, second = runner.run(batch(0.5)), runner.run(batch(1.5))
    assert first.error < 1e-5 and second.error < 1e-5
    assert second.moved is not None and second.moved > 0.5
    assert names[0] != names[1]
    loaded = [(verb, name, 1) for name in names for verb in ("load", "unload")]
    assert adapters(fake) == loaded
    assert [row["model"] for row in fake_vllm.kept(fake, "requests")] == names
    assert not list((fake / "serving").iterdir())
    runner.run(served.close())
    (start,) = fake_vllm.kept(fake, "starts")
    assert start["environment"][fake_vllm.RUNTIME_ADAPTERS] == "True"
    words = start["words"]
    assert words[words.index("--max-lora-rank") + 1] == "16"
    assert words[words.index("--model") + 1] == str(fake / "base")


def test_a_server_that_ignores_an_adapter_fails_the_canary(
    fake: Path, runner: asyncio.Runner
) -> None:
    served, canary = serving(fake), new_canary()
    runner.run(check(served, canary, 0.5))
    (fake / "deaf").touch()
    with pytest.raises(TrainingError, match="still serves the weights of the previous batch"):
        runner.run(check(served, canary, 1.5))
    runner.run(served.close())


def test_a_server_that_died_is_restarted_with_the_adapter(
    fake: Path, runner: asyncio.Runner
) -> None:
    """The server is killed between two batches and within one."""
    served, canary = serving(fake), new_canary()
    runner.run(check(served, canary, 0.5))
    os.kill(fake_vllm.kept(fake, "starts")[0]["pid"], signal.SIGKILL)

    async def batch() -> str:
        async with served.serve(model(1.5)) as engine:
            await canary.check(engine, model(1.5))
            os.kill(fake_vllm.kept(fake, "starts")[-1]["pid"], signal.SIGKILL)
            asked = SampleRequest(
                (Message("user", "die"),), Sampling(), CallIdentity("policy", "q", "0"), tokens=True
            )
            await engine.sample(asked)
            await canary.check(engine, model(1.5))
            return engine.digest

    digest = runner.run(batch())
    lives = fake_vllm.kept(fake, "starts")
    assert len(lives) == 3
    for life in lives[1:]:
        (lora,) = [word for word in life["words"] if word.startswith(f"branchwise-{digest[:16]}=")]
        assert lora.endswith("/adapter")
    assert adapters(fake)[-1] == ("unload", f"branchwise-{digest[:16]}", 3)
    runner.run(served.close())


def test_every_replica_gets_the_adapter_and_answers_the_canary(
    fake: Path, runner: asyncio.Runner
) -> None:
    served, canary = serving(fake, replicas=2), new_canary()
    assert runner.run(check(served, canary, 0.5)).error < 1e-5
    assert len({row["port"] for row in starts(fake)}) == 2
    assert sorted((verb, life) for verb, _, life in adapters(fake)) == [
        ("load", 1), ("load", 2), ("unload", 1), ("unload", 2),
    ]  # fmt: skip
    assert {row["life"] for row in fake_vllm.kept(fake, "requests")} == {1, 2}
    (fake / "deaf 2").touch()
    with pytest.raises(TrainingError, match=r"still serves the|does not serve the weights"):
        runner.run(check(served, canary, 1.5))
    runner.run(served.close())


@pytest.mark.parametrize("rank", [16, None])
def test_a_running_server_gets_adapters_only_if_it_allows_them_at_runtime(
    rank: int | None, fake: Path, runner: asyncio.Runner
) -> None:
    async def asked() -> None:
        async with server_for(settings(fake), fake / "logs", rank=rank) as there:
            served = serving(fake, base_url=there.base_url)
            try:
                assert (await check(served, new_canary(), 0.5)).error < 1e-5
            finally:
                await served.close()
            assert (await there.healthy()).number == 1

    if rank is None:
        with pytest.raises(EndpointError, match=f"{fake_vllm.RUNTIME_ADAPTERS}=True"):
            runner.run(asked())
    else:
        runner.run(asked())
        assert [verb for verb, *_ in adapters(fake)] == ["load", "unload"]


def test_an_adapter_that_is_already_loaded_on_the_server_is_accepted(
    fake: Path, runner: asyncio.Runner
) -> None:
    async def twice() -> None:
        async with server_for(settings(fake), fake / "logs", rank=16) as there:
            one, other = (serving(fake, base_url=there.base_url) for _ in range(2))
            async with one.serve(model(0.5)):
                await check(other, new_canary(), 0.5)

    runner.run(twice())
    assert [verb for verb, *_ in adapters(fake)] == ["load", "load", "unload", "unload"]
