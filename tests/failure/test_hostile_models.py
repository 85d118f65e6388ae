"""Model folders from untrusted sources: their code never runs, and damage is a short error.

Stages run as from the command line, and end before they write or load anything.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable import World
from fake_vllm import no_tensors
from stages import Ended
from strange_files import Strange, endless, pipe, sparse
from tiny_llama import write_tiny_folder

from branchwise.base.errors import ConfigError
from branchwise.weights.policies import load_policy, policy_files, validated_policy_files
from branchwise.weights.policy_gguf import check_embedded

pytestmark = pytest.mark.failure

LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
BASE = "../base"


def tensors(**shapes: tuple[int, ...]) -> bytes:
    """Returns a safetensors file whose tensors are all zeros."""
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        offsets = [place, place + size]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        place += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(place)


def lora(rank: int = 2) -> bytes:
    at = "base_model.model.model.layers.0.self_attn.q_proj"
    return tensors(**{f"{at}.lora_A.weight": (rank, 64), f"{at}.lora_B.weight": (64, rank)})


def policy(folder: Path, record: Any = None, config: Any = None, weights: bytes = b"") -> Path:
    """Writes a policy folder with an adapter."""
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_text(_json(config or LORA))
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(weights or lora())
    (folder / "training.json").write_text(_json(record or {"base": BASE}))
    return folder


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "base")


@pytest.fixture
def base(tiny: Path, tmp_path: Path) -> Path:
    """Merged weights that can be loaded."""
    return Path(shutil.copytree(tiny, tmp_path / "base"))


def annotate_with(world: World, model: Path | str, *more: str, **how: Any) -> Ended:
    """Runs `annotate` with the model in the embedded engine; it must not create the run folder."""
    settings = ("policy.engine=openvino", "policy.base_url=null", f"policy.model={model}", *more)
    words = [word for setting in settings for word in ("--set", setting)]
    run = world.whole.parent / "never"
    ended = world.stages.run("annotate", "--config", world.recipe, "--run", run, *words, **how)
    assert not run.exists()
    return ended


def assert_refused(ended: Ended, *said: str) -> None:
    """Checks for exit code 2 and a short message with these words, without a traceback."""
    assert ended.code == 2, ended.said[-3000:]
    assert "Traceback" not in ended.said
    for words in said:
        assert words in ended.said
    assert len(ended.said) < 4000, "the message must be short"


def assert_invalid(model: Path, *said: str) -> None:
    """Checks that the model is refused before it is loaded, with a short message."""
    with pytest.raises(ConfigError) as refused:
        check_embedded(validated_policy_files(str(model)))
    for words in said:
        assert words in str(refused.value)
    assert len(str(refused.value)) < 4000, "the message must be short"


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"base": "."}, "leads back to this folder"),
        ({"base": "../loop"}, "leads back to this folder"),
        ({"base": "packaged", "chain": ["adapter"] * 5000}, "more than 64 adapters in a chain"),
        ({"base": "../nothing"}, "does not exist"),
        ({"base": "x" * 5000}, "cannot be read"),
        ({"base": "x\0y"}, "does not exist"),
        ({"base": "/dev/zero"}, "does not exist"),
        ({"base": "packaged", "chain": 5}, "must name the base of the adapter"),
        ({"base": "packaged", "chain": ["x" * 5000]}, "cannot be read"),
        ({"base": "packaged", "chain": ["../no"]}, "names an adapter that is missing"),
        ({"chain": []}, "must name the base of the adapter"),
        ("[" * 100_000, "nested too deeply"),
        ('{"base": "packaged", "n": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ("5", "must name the base of the adapter"),
    ],
)
def test_an_invalid_base_of_an_adapter_is_refused(record: Any, says: str, tmp_path: Path) -> None:
    policy(tmp_path / "policy", record)
    policy(tmp_path / "loop", {"base": "../policy"})
    assert_invalid(tmp_path / "policy", says)


def test_a_chain_of_more_than_64_policy_folders_is_refused(tmp_path: Path) -> None:
    for number in range(70):
        policy(tmp_path / str(number), {"base": f"../{number + 1}"})
    assert_invalid(tmp_path / "0", "more than 64 adapters in a chain")


def test_a_pipe_as_training_record_is_refused(world: World, tmp_path: Path) -> None:
    pipe(policy(tmp_path / "policy") / "training.json", tmp_path / "outside")
    assert_refused(annotate_with(world, tmp_path / "policy"), "policy/training.json: is a pipe")


@pytest.mark.parametrize("name", ["training.json", "adapter/adapter_config.json"])
def test_a_record_larger_than_memory_is_refused(
    name: str, base: Path, world: World, tmp_path: Path
) -> None:
    sparse(policy(tmp_path / "policy") / name, tmp_path / "outside")
    assert_refused(
        annotate_with(world, tmp_path / "policy"), f"policy/{name}: has 10,737,418,240 bytes"
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list"),
        ("[" * 100_000, "nested too deeply"),
        ({**LORA, "r": 1_000_000_000}, "rank 1000000000"),
        ({**LORA, "r": "two"}, "rank two"),
        ('{"peft_type": "LORA", "r": ' + "9" * 5000 + "}", "Exceeds the limit"),
        ({**LORA, "r": 4}, "has rank 2"),
        ({**LORA, "rank_pattern": {"q_proj": 10**9}}, "rank 1000000000"),
        ({**LORA, "auto_map": {"Lora": "evil.Lora"}}, "`auto_map` names code"),
    ],
)
def test_an_invalid_adapter_configuration_is_refused(
    config: Any, says: str, base: Path, tmp_path: Path
) -> None:
    policy(tmp_path / "policy", config=config)
    assert_invalid(tmp_path / "policy", says, "policy/adapter")


def _other_end(weights: bytes) -> bytes:
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    next(iter(header.values()))["data_offsets"] = [0, 1 << 60]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda weights: weights[:-10],
    "cut off early": lambda weights: weights[:5],
    "empty": lambda weights: b"",
    "an absurd header": lambda weights: (1 << 60).to_bytes(8, "little") + weights[8:],
    "a header of noise": lambda weights: weights[:8] + b"\xff" * (len(weights) - 8),
    "a deep header": lambda weights: (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "a tensor elsewhere": _other_end,
    "another shape": lambda weights: weights.replace(b"[2, 64]", b"[9, 64]"),
    "a pickle": lambda weights: pickle.dumps({"weights": [1, 2]}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_adapter_weights_are_refused(
    damage: Callable[[bytes], bytes], base: Path, tmp_path: Path
) -> None:
    policy(tmp_path / "policy", weights=damage(lora()) or b"\0")
    assert_invalid(tmp_path / "policy", "adapter_model.safetensors: cannot be read", "Restore")


def test_an_adapter_that_does_not_fit_its_base_is_refused(base: Path, tmp_path: Path) -> None:
    at = "base_model.model.model.layers.0.self_attn.q_proj"
    wide = tensors(**{f"{at}.lora_A.weight": (2, 640), f"{at}.lora_B.weight": (64, 2)})
    files = policy_files(str(policy(tmp_path / "policy", weights=wide)))
    with pytest.raises(ConfigError, match="cannot be merged into its base"):
        load_policy(files)


class _TouchesFile:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["adapter/adapter_model.bin", "pytorch_model.bin", "model.pt"])
def test_pickles_are_refused_and_never_loaded(name: str, world: World, tmp_path: Path) -> None:
    path, marker = tmp_path / "policy" / name, tmp_path / "it-ran"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps(_TouchesFile(marker)))
    assert_refused(annotate_with(world, tmp_path / "policy"), f"{path} is a pickle", "never loaded")
    assert not marker.exists()


CODE = "from pathlib import Path\nPath({marker!r}).touch()\nclass Evil: ...\n"


def with_code(folder: Path, name: str, marker: Path) -> Path:
    """Adds code to a model folder and names it in the file `name`."""
    path = folder / name
    kept = json.loads(path.read_text()) if path.exists() else {}
    names = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    names["AutoTokenizer"] = names["AutoModel"] = "evil.Evil"
    path.write_text(json.dumps({**kept, "model_type": "evil", "auto_map": names}))
    (folder / "evil.py").write_text(CODE.format(marker=str(marker)))
    return folder


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json"],
)
def test_code_in_a_model_folder_is_refused_and_never_run(
    name: str, base: Path, world: World, tmp_path: Path
) -> None:
    marker = tmp_path / "it-ran"
    with_code(base, name, marker)
    (base / "tokenizer.json").write_text("{}")
    for model in (base, policy(tmp_path / "policy")):
        assert_refused(
            annotate_with(world, model),
            f"{name}: `auto_map` names code",
            "code in model folders is never run",
        )
    served = annotate_with(world, base, "policy.engine=vllm", "policy.base_url=null")
    assert_refused(served, "`auto_map` names code")
    assert not marker.exists()


def test_code_in_a_hub_model_is_refused_and_never_run(
    base: Path, world: World, tmp_path: Path
) -> None:
    marker, hub = tmp_path / "it-ran", tmp_path / "hub" / "models--owner--name"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("0123abc")
    blobs = Path(shutil.copytree(with_code(base, "config.json", marker), hub / "blobs"))
    (blobs / "tokenizer.json").write_text("{}")
    snapshot = hub / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    at = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    assert_refused(annotate_with(world, "hub:owner/name", environment=at), "`auto_map` names code")
    assert not marker.exists()


def test_code_in_a_dense_encoder_is_refused_and_never_run(
    base: Path, world: World, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    marker = tmp_path / "it-ran"
    with_code(base, "config.json", marker)
    settings = ("retrieval.kind=dense", f"retrieval.dense.model={base}")
    words = [word for setting in settings for word in ("--set", setting)]
    run = ("--run", tmp_path / "run", "--config", world.recipe)
    assert_refused(world.stages.run("index", *run, *words), "`auto_map` names code")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: (b / "config.json").write_text("{"), "config.json: cannot be read"),
        (lambda b: (b / "config.json").write_text("[" * 100_000), "nested too deeply"),
        (lambda b: _changed(b / "config.json", num_hidden_layers=10**9), "`num_hidden_layers`"),
        (lambda b: (b / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json"),
        (lambda b: (b / "adapter_config.json").write_text("{}"), "next to merged weights"),
        (
            lambda b: (b / "model.safetensors").write_bytes(b"short"),
            "cannot be read as safetensors",
        ),
        (lambda b: _indexed(b, "../elsewhere.safetensors"), "does not name a file in its folder"),
        (lambda b: _indexed(b, 5), "not an index of safetensors shards"),
    ],
)
def test_damaged_merged_weights_are_refused(
    damage: Callable[[Path], object], says: str, base: Path
) -> None:
    damage(base)
    assert_invalid(base, says)


def _changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _indexed(base: Path, shard: object) -> None:
    (base / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": shard}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("strange", [pipe, endless])
def test_pipes_and_devices_in_place_of_model_files_are_refused(
    strange: Strange, name: str, base: Path, world: World, tmp_path: Path
) -> None:
    strange(base / name, tmp_path / "outside")
    assert_refused(annotate_with(world, base), "not a regular file")


def test_model_files_may_be_links_to_files(base: Path, tmp_path: Path) -> None:
    """The hub's own cache consists of such links."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in base.iterdir():
        (linked / file.name).symlink_to(file)
    load_policy(policy_files(str(linked)))


@pytest.mark.parametrize("text", ["{", "{}", '{"model": 5}', "[" * 100_000])
def test_a_damaged_tokenizer_is_refused(text: str, base: Path) -> None:
    (base / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_policy(policy_files(str(base)))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"kind": "reward-model"}, "no reward model here"),
        ({"kind": "reward-model", "encoder": 5, "encoder_digest": "", "heads_digest": ""}, "text"),
        ({"kind": "dpo"}, "describes a `dpo`"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind": ' + "9" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_an_invalid_reward_model_is_refused(
    record: Any, says: str, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "reward-model"
    folder.mkdir()
    (folder / "training.json").write_text(_json(record))
    (folder / "heads.safetensors").write_bytes(no_tensors("none"))
    trees = ("mcts={kind: chains, branches: 2}", "agent.protocol=evo-rag", "rewards.scheme=evo-rag")
    settings = (*trees, "pairs.score=reward_model", f"reward_model={folder}")
    assert_refused(annotate_with(world, "packaged", *settings), says)
