"""Finds the vLLM on this machine, and builds the command that starts its server."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from branchwise.base import ConfigError

from ..settings import ModelSettings

VARIABLE = "BRANCHWISE_VLLM_PYTHON"
"""Variable with the interpreter of the environment that contains vLLM."""
OWN_ENVIRONMENT = Path(".venv-vllm") / "bin" / "python"
"""Environment made by `make test-vllm`."""

LOOPBACK = "127.0.0.1"
CPU_CACHE_GIB = "2"
"""Memory of the key-value cache on a CPU, if VLLM_CPU_KVCACHE_SPACE is not set."""
RUNTIME_ADAPTERS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Variable that allows loading adapters into a running server."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""Variable with the GPUs that a process sees; ROCm reads it, too."""
LONGEST_PROMPT = 32768
"""Assumed context length of a model that does not declare one."""

_QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_LOGGING_COLOR": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # a file in the current folder must not hide a package
}
# vLLM's processes also connect to each other, by default on an address that others can reach.
_LOOPBACK = {"VLLM_HOST_IP": LOOPBACK, "VLLM_LOOPBACK_IP": LOOPBACK}
_PROBE = """
import importlib.metadata as m, json
versions = {d.metadata["Name"]: d.version for d in m.distributions()}
vllm = next((name for name in ("vllm", "vllm-cpu") if name in versions), None)
print(json.dumps([vllm, versions[vllm], versions.get("transformers", "0")] if vllm else None))
"""

OLDEST_TRANSFORMERS = 5
"""Major version that reads the model folders written here.

transformers 4 ignores the rotary base in them and takes 10,000, without a message.
"""


@dataclass(frozen=True, slots=True)
class Vllm:
    """An installed vLLM: its environment's interpreter, its package and two versions there."""

    python: Path
    package: str
    version: str
    transformers: str

    @property
    def on_cpu(self) -> bool:
        """Whether this is a build for CPUs."""
        return self.package == "vllm-cpu" or "+cpu" in self.version

    @property
    def start(self) -> list[str]:
        """The command that starts the server; the model follows.

        `vllm serve` fails in the CPU package, because it reads the metadata of a package that is
        missing there.
        """
        if self.package == "vllm-cpu":
            return [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model"]
        return [str(self.python.with_name("vllm")), "serve"]


@dataclass(frozen=True, slots=True)
class Served:
    """The model of a server.

    Attributes:
        name: Model name in requests.
        weights: Folder that transformers can read, or a name that vLLM resolves itself.
        adapter: LoRA on top of the weights, served as `name`; None to serve the weights.
        rank: LoRA rank of adapters; 0 without adapters.
        context: Context length in tokens; None if unknown.
    """

    name: str
    weights: str
    adapter: Path | None = None
    rank: int = 0
    context: int | None = None

    @property
    def base_name(self) -> str:
        """Model name for requests to the weights without the adapter."""
        return f"{self.name}-base" if self.adapter else self.name


def installed_vllm() -> Vllm:
    """Returns the vLLM named by `BRANCHWISE_VLLM_PYTHON`, of this environment, or of `.venv-vllm`.

    Raises:
        ConfigError: If vLLM is not found, or too old.
    """
    chosen_python = os.environ.get(VARIABLE)
    usual = (Path(sys.executable), OWN_ENVIRONMENT.absolute())
    for python in (Path(chosen_python).expanduser(),) if chosen_python else usual:
        vllm = _vllm_of(python)
        if vllm is None:
            continue
        if int(vllm.transformers.split(".")[0]) < OLDEST_TRANSFORMERS:
            raise ConfigError(
                f"vLLM {vllm.version} in the environment of {vllm.python} uses transformers "
                f"{vllm.transformers}, which misreads models from transformers "
                f"{OLDEST_TRANSFORMERS}. Install vllm>=0.31 there"
            )
        return vllm
    problem = (
        f"vLLM is not installed in the environment of {chosen_python} ({VARIABLE})"
        if chosen_python
        else "vLLM is not installed"
    )
    raise ConfigError(
        f"{problem}. Install it into its own environment (`pip install vllm`; without a GPU, "
        f"`make {OWN_ENVIRONMENT.parts[0]}/done`) and set {VARIABLE}=ENV/bin/python"
    )


@lru_cache(maxsize=8)
def _vllm_of(python: Path) -> Vllm | None:
    """Returns the vLLM of an environment, or None."""
    try:
        probe = subprocess.run(
            [str(python), "-I", "-c", _PROBE], capture_output=True, text=True, check=True
        )
        versions = json.loads(probe.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None
    return Vllm(python, *versions) if versions else None


def server_command(
    vllm: Vllm, served: Served, dtype: str, host: str, port: int, more: Sequence[str] = ()
) -> list[str]:
    """Returns the whole command for a server.

    Args:
        vllm: Installation to run.
        served: Weights, adapter and their names.
        dtype: Compute precision as in the settings; "auto" is float32 on a CPU.
        host, port: Address and port to listen on.
        more: Arguments from the recipe; they override ours.
    """
    command = [*vllm.start, served.weights, "--served-model-name", served.base_name]
    command += ["--host", host, "--port", str(port)]
    # A model's generation_config.json would silently change the sampling settings.
    command += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--dtype", "float32" if vllm.on_cpu and dtype == "auto" else dtype]
    if vllm.on_cpu:
        # On a CPU, vLLM 0.32 crashes when it splits the prompt of a seeded request into chunks.
        command += ["--enforce-eager", "--no-enable-chunked-prefill"]
        command += ["--max-num-batched-tokens", str(served.context or LONGEST_PROMPT)]
    if served.rank:
        command += ["--enable-lora", "--max-lora-rank", str(served.rank)]
    if served.adapter is not None:
        command += ["--lora-modules", f"{served.name}={served.adapter.resolve()}"]
    return [*command, *more]


def check_vllm(settings: ModelSettings) -> None:
    """Checks that this machine can start the servers of a model.

    Raises:
        ConfigError: If vLLM is not found or too old, or there are too few GPUs.
    """
    if not installed_vllm().on_cpu:
        gpus_of(settings, 0, os.environ)


def gpus_of(settings: ModelSettings, replica: int, environment: Mapping[str, str]) -> list[str]:
    """Returns the GPUs of one server of a fleet, by number or id; none if it may use all.

    Raises:
        ConfigError: If this machine has too few.
    """
    each = settings.gpus_per_replica or int(settings.replicas > 1)
    visible = _visible_gpus(environment)
    if len(visible) < each * settings.replicas:
        raise ConfigError(
            f"{settings.replicas} replicas of {settings.model} with {each} GPUs each need "
            f"{each * settings.replicas}, but this machine has {len(visible)}: set replicas, "
            f"gpus_per_replica or {GPUS}"
        )
    return visible[replica * each : (replica + 1) * each]


def _visible_gpus(environment: Mapping[str, str]) -> list[str]:
    if GPUS in environment:
        return [gpu for gpu in environment[GPUS].split(",") if gpu]
    files = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev/dri").glob("renderD*")]
    nvidia = [file for file in files if file.name.startswith("nvidia")]
    # Numbered from 0 in a container, too, whatever the names of its files.
    return [str(number) for number in range(len(nvidia or files))]


def server_environment(
    vllm: Vllm, served: Served, inherited: Mapping[str, str], gpus: Sequence[str] = ()
) -> dict[str, str]:
    """Returns the server's environment: `inherited` without telemetry and this interpreter's paths.

    If the weights are on this machine, the server loads them without the network. It sees only
    `gpus`, if there are any.
    """
    interpreters = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {name: value for name, value in inherited.items() if name not in interpreters}
    environment |= _QUIET | _LOOPBACK
    if vllm.on_cpu:
        environment["VLLM_CPU_KVCACHE_SPACE"] = (
            inherited.get("VLLM_CPU_KVCACHE_SPACE") or CPU_CACHE_GIB
        )
    if gpus:
        environment[GPUS] = ",".join(gpus)
    if served.rank and served.adapter is None:
        environment[RUNTIME_ADAPTERS] = "True"
    if Path(served.weights).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    return environment
