"""Command line: the recipe that a stage uses, dry runs, and checks of options."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from sample_records import a_pair
from tiny_dataset import recipe

from branchwise.cli.command_line import parser, run_stage
from branchwise.runs.proguide import write_proguide

pytestmark = pytest.mark.usefixtures("own_folder")


def branchwise(stage: str, *more: object) -> int:
    return run_stage(parser().parse_args([stage, *map(str, more)]))


def test_a_run_resumes_with_its_own_recipe(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    assert branchwise("annotate", "--config", config, "--run", run) == 0
    made = len(endpoint.requests)
    # A stage that used the default recipe would exit 2, because its settings are others.
    assert branchwise("annotate", "--run", run) == 0
    assert branchwise("relabel", "--run", run, "--set", "rewards.alpha=0.5") == 0
    assert branchwise("inspect", "--run", run) == 0
    assert len(endpoint.requests) == made
    assert branchwise("annotate", "--run", run, "--set", "mcts.c=9") == 2
    assert "mcts.c: was 1.4, now 9" in capsys.readouterr().out


def test_recipes_have_names_that_work_in_any_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for config in ((), ("--config", "atlas")):
        assert branchwise("schedule", *config) == 2
        assert "`spre`" in capsys.readouterr().out
    assert branchwise("schedule", "--config", "evo-rag-papr") == 2
    assert "did you mean `evo-rag-paper`?" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["index", "annotate", "all"])
def test_a_dry_run_of_a_new_run_writes_nothing(
    stage: str, tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, endpoint.base_url)
    before = sorted(tmp_path.rglob("*"))
    assert branchwise(stage, "--config", config, "--run", tmp_path / "run", "--dry-run") == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert endpoint.requests == []
    told = capsys.readouterr().out
    assert ("4 passages" in told, "then eval" in told) == (True, stage == "all")


def test_a_dry_run_imports_and_exports_no_pairs(tmp_path: Path, endpoint: FakeEndpoint) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    source, target = tmp_path / "pairs.json", tmp_path / "out.json"
    prompt = ({"role": "system", "content": "s"}, {"role": "user", "content": "Question: q"})
    write_proguide(source, [a_pair(prompt=prompt)])
    to_run = ("--config", config, "--run", run)
    assert branchwise("import-pairs", *to_run, "--file", source, "--dry-run") == 0
    assert not run.exists()
    assert branchwise("import-pairs", *to_run, "--file", source) == 0
    assert branchwise("export-pairs", "--run", run, "--file", target, "--dry-run") == 0
    assert not target.exists()


def test_verify_advises_to_import_damaged_pairs_again(
    tmp_path: Path, endpoint: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = recipe(tmp_path, endpoint.base_url), tmp_path / "run"
    source = tmp_path / "pairs.json"
    prompt = ({"role": "system", "content": "s"}, {"role": "user", "content": "Question: q"})
    write_proguide(source, [a_pair(prompt=prompt)])
    imported = ("import-pairs", "--config", config, "--run", run, "--file", source)
    assert branchwise(*imported) == 0
    (part,) = (run / "pairs").iterdir()
    part.write_bytes(b"damaged")
    assert branchwise("verify", "--run", run) == 1
    assert "rerun `branchwise import-pairs`" in capsys.readouterr().out
    assert branchwise(*imported) == 0
    assert branchwise("verify", "--run", run) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("annotate", "--limit", "-1"), "'-1' is not a positive integer"),
        (("annotate", "--limit", "0"), "'0' is not a positive integer"),
        (("annotate", "--limit", "9" * 30), "is not a positive integer"),
        (("study", "--name", "labels", "--seeds", "0", "x"), "'x' is not a whole number"),
        (("study", "--name", "labels", "--seeds", "9223372036854775808"), "fit into 64 bits"),
        (("study", "--name", "labels", "--seeds", "-9223372036854775809"), "fit into 64 bits"),
        (("train-dpo", "--limit", "5"), "unrecognized arguments: --limit"),
        (("inspect", "--dry-run"), "unrecognized arguments: --dry-run"),
    ],
)
def test_invalid_and_unsupported_options_are_refused(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        branchwise(*arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


HELP = """
import sys
from branchwise.cli.command_line import parser
from branchwise.pipelines.stages import STAGES
for name, stage in STAGES.items():
    before = set(sys.modules)
    try:
        parser().parse_args([name, "--help"])
    except SystemExit:
        new = {m for m in set(sys.modules) - before if m.startswith("branchwise.pipelines.")}
        folder = "branchwise.pipelines." + stage.path.partition(".")[0]
        assert all(module.startswith(folder) for module in new), new
assert not {"torch", "openvino_genai", "transformers", "matplotlib"} & set(sys.modules)
"""


def test_help_of_a_stage_imports_only_the_module_of_that_stage() -> None:
    repository = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", HELP], cwd=repository, check=True)
