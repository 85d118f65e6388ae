"""vLLM servers that Branchwise starts: their arguments, restarts and end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fake_vllm
import pytest

from branchwise.base.errors import ConfigError, EndpointError
from branchwise.engines.endpoint.openai import OpenAIEngine
from branchwise.engines.sampling import (
    CallIdentity,
    SampleRequest,
    Sampling,
    call_key,
    derived_seed,
)
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.command import VARIABLE, installed_vllm
from branchwise.engines.vllm.served_weights import served_digest
from branchwise.engines.vllm.vllm_engine import VllmEngine, server_for
from branchwise.types import Message

OWNER = """
import asyncio, sys
from pathlib import Path
from branchwise.engines.settings import ModelSettings
from branchwise.engines.vllm.vllm_engine import server_for

async def own():
    async with server_for(ModelSettings(engine="vllm", model=sys.argv[1]), Path(sys.argv[2])):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(own())
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a fake vLLM that `BRANCHWISE_VLLM_PYTHON` points to."""
    monkeypatch.setenv(VARIABLE, fake_vllm.install(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    return tmp_path


@contextmanager
def all_ended(folder: Path) -> Iterator[None]:
    """Checks that all processes of servers started in the block end soon after it."""
    pipe = folder / "alive"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
        os.set_blocking(reading, True)
        assert os.read(reading, 1) == b"", (
            "reading returns when the last process has closed the pipe"
        )
    finally:
        os.close(reading)


def engine(model: Path, **changes: Any) -> VllmEngine:
    settings = ModelSettings.model_validate({"engine": "vllm", "model": str(model), **changes})
    connect = partial(OpenAIEngine, max_concurrency=4, timeout_s=20.0)
    return VllmEngine(settings, connect, model.parent / "logs")


def request(text: str) -> SampleRequest:
    return SampleRequest((Message("user", text),), Sampling(), CallIdentity("policy", "q", "0"))


async def test_an_adapter_is_served_on_its_base_under_a_name_with_its_digest(fake: Path) -> None:
    policy = fake_vllm.write_policy(fake)
    async with engine(policy, server_args=["--max-num-seqs", "8"]) as served:
        drawn = await served.sample(request("Lyon"))
    (start,) = fake_vllm.kept(fake, "starts")
    words = start["words"]
    said = dict(zip(words, [*words[1:], ""], strict=True))
    name = f"branchwise-{served.digest[:16]}"
    assert said["--model"] == str(fake / "base")
    assert said["--lora-modules"] == f"{name}={policy / 'adapter'}"
    assert (said["--max-lora-rank"], said["--max-num-seqs"]) == ("16", "8")
    assert (said["--host"], said["--dtype"]) == ("127.0.0.1", "float32")
    assert "--enable-prefix-caching" in words
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    assert start["environment"] == quiet | {"VLLM_HOST_IP": "127.0.0.1"}
    (asked,) = fake_vllm.kept(fake, "requests")
    assert asked["model"] == name
    key = call_key(request("Lyon"), served.digest)
    assert asked["seed"] == derived_seed(key), (
        "the seed must follow from the ledger's key, not from the address"
    )
    assert (served.model, drawn.model) == (str(policy), str(policy)), (
        "rows must contain the model name of the recipe"
    )

    (policy / "adapter" / "adapter_model.safetensors").write_bytes(fake_vllm.no_tensors("another"))
    assert engine(policy, server_args=["--max-num-seqs", "8"]).digest != served.digest


async def test_a_call_is_retried_when_its_server_dies(fake: Path) -> None:
    with all_ended(fake):
        async with engine(fake_vllm.write_policy(fake)) as served:
            drawn = await served.sample(request("die once"))
            assert served.server is not None
            assert (await served.server.healthy()).number == 2
            with pytest.raises(ProcessLookupError):  # the first server's child must have ended, too
                os.killpg(fake_vllm.kept(fake, "starts")[0]["pid"], 0)
    assert drawn.text == "life 2"
    assert drawn.attempts >= 2
    assert len({row["seed"] for row in fake_vllm.kept(fake, "requests")}) == 1


async def test_a_server_that_keeps_dying_is_not_restarted_and_its_error_is_shown(
    fake: Path,
) -> None:
    async with engine(fake_vllm.write_policy(fake)) as served:
        with pytest.raises(EndpointError, match="died 3 times during this call") as lost:
            await served.sample(request("die"))
        assert not lost.value.fatal, "another prompt may be harmless"
        assert lost.value.attempts == len(fake_vllm.kept(fake, "requests")) == 3
        assert (await served.sample(request("Lyon"))).text
        with pytest.raises(EndpointError, match="died 4 times in 10 minutes") as dead:
            await served.sample(request("die"))
        assert dead.value.fatal
        assert "asked to die" in str(dead.value)
        with pytest.raises(EndpointError, match="will not be restarted"):
            await served.sample(request("Lyon"))
    assert len(fake_vllm.kept(fake, "starts")) == 4


async def test_restarts_that_fail_slowly_end_the_stage(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "branchwise.engines.vllm.vllm_server.WITHIN_S", 0.0
    )  # no two deaths are close together
    async with engine(fake_vllm.write_policy(fake)) as served:
        (fake / "broken").touch()
        with pytest.raises(EndpointError, match=r"3 restarts .* in a row failed") as dead:
            await served.sample(request("die"))
    assert dead.value.fatal
    assert len(fake_vllm.kept(fake, "starts")) == 1 + 3


async def test_a_refused_request_is_not_retried(fake: Path) -> None:
    async with engine(fake_vllm.write_policy(fake)) as served:
        with pytest.raises(EndpointError, match="refused"):
            await served.sample(request("refuse"))
    assert len(fake_vllm.kept(fake, "requests")) == 1


async def test_the_error_of_a_server_that_cannot_start_is_shown(fake: Path) -> None:
    (fake / "broken").touch()
    with pytest.raises(EndpointError, match=r"exit code 1.*") as caught:
        async with engine(fake_vllm.write_policy(fake)):
            pass
    assert "ValueError: no such weights" in str(caught.value), (
        "the error is far above the last line"
    )
    assert len(fake_vllm.kept(fake, "starts")) == 1


def test_no_server_outlives_a_killed_owner(fake: Path) -> None:
    policy = fake_vllm.write_policy(fake)
    command = [sys.executable, "-c", OWNER, str(policy), str(fake / "logs")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with all_ended(fake):
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
        assert owner.wait() == -signal.SIGKILL
        owner.stdout.close()


async def test_an_existing_server_is_used_and_not_stopped(fake: Path) -> None:
    policy = fake_vllm.write_policy(fake)
    async with server_for(ModelSettings(engine="vllm", model=str(policy)), fake / "logs") as there:
        async with engine(policy, base_url=there.base_url) as served:
            assert (await served.sample(request("Lyon"))).text
            assert served.server is None
        with pytest.raises(EndpointError, match="does not serve the model"):
            async with engine(policy, base_url=there.base_url, dtype="bfloat16"):
                pass
        assert (await there.healthy()).number == 1
    assert served.digest == engine(policy).digest, "the digest must not depend on the address"


@pytest.mark.parametrize(
    "word",
    [
        "--trust-remote-code",
        "--trust_remote_code=true",
        "--trust",
        "--config",
        "--middleware=os.x",
        "--hf-overrides.auto_map.AutoConfig=evil.Evil",
        "--tool-parser-plugin",
        "--worker-cls",
    ],
)
def test_server_arguments_that_run_code_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="runs code that a recipe or a model folder names"):
        ModelSettings(engine="vllm", server_args=(word,))


def test_a_server_argument_whose_name_begins_like_a_refused_one_is_allowed() -> None:
    words = ("--reasoning-parser", "qwen3")
    assert ModelSettings(engine="vllm", server_args=words).server_args == words


@pytest.mark.parametrize("word", ["--hos", "--port=80", "--model", "--serv"])
def test_abbreviations_of_reserved_server_arguments_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="set by Branchwise itself"):
        ModelSettings(engine="vllm", server_args=(word, "0.0.0.0"))


async def test_a_port_in_use_is_refused(fake: Path) -> None:
    settings = ModelSettings(engine="vllm", model=str(fake_vllm.write_policy(fake)))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            async with server_for(settings, fake / "logs", port):
                pass


def test_a_missing_vllm_is_reported_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    with pytest.raises(
        ConfigError, match=rf"not installed in the environment of .* \({VARIABLE}\)\. Install"
    ):
        installed_vllm()


@pytest.mark.usefixtures("fake")
def test_a_vllm_with_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TRANSFORMERS", "4.57.6")
    with pytest.raises(ConfigError, match=r"transformers 4\.57\.6.* Install vllm>=0\.31"):
        installed_vllm()


def test_a_missing_local_folder_is_not_taken_for_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(ConfigError, match="does not exist"):
        served_digest(ModelSettings(engine="vllm", model="models/mine"))
    assert served_digest(ModelSettings(engine="vllm", model="owner/name"))
