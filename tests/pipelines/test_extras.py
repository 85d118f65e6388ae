"""Extras that a stage needs, by its recipe and the settings in ARGS."""

from pathlib import Path

import pytest

from branchwise.base.errors import ConfigError
from branchwise.cli.extras import required_extras
from branchwise.runs import recipe_checks
from branchwise.runs.environment import extras_of
from branchwise.runs.recipe_file import load_recipe, load_recipe_leniently

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = sorted((REPOSITORY / "configs").glob("*.yaml"))
DENSE, SPARSE = ("name: x\nretrieval:\n  kind: dense\n", "name: x\n")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for name, text in (("dense.yaml", DENSE), ("bm25.yaml", SPARSE)):
        (tmp_path / name).write_text(text)
    for run, text in (("dense-run", DENSE), ("bm25-run", SPARSE)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "dense"),
    [
        ("annotate", False),
        ("annotate --config=dense.yaml", True),
        ("annotate --run=dense-run", True),
        ("annotate --run=dense-run --config=bm25.yaml", False),
        ("annotate --run=bm25-run --config=dense.yaml", True),
        ("annotate --run=new-run", False),
        ("study --name=evo-heads --run=bm25-run", True),
        ("study --name=evo-heads --config=bm25.yaml", False),
        ("study --name=labels --run=dense-run", True),
        ("study --name=../dense --run=bm25-run", False),
        ("study --name=" + "x" * 5000, False),
        ("annotate --config=nowhere.yaml", False),
        ("annotate --config=search-r1 --set retrieval.kind=dense", True),
        ("annotate --config=no-recipe", False),
        ("no-stage --config=dense.yaml", False),
        ("import-pairs --config=dense.yaml", False),
        ("", False),
    ],
)
def test_extras_are_those_of_the_recipe_that_the_stage_uses(
    given: str, dense: bool, own_folder: Path
) -> None:
    studies = own_folder / "configs" / "evo-studies.yaml"
    studies.write_text("name: x\nrewards: {scheme: evo-rag}\n")
    assert required_extras(given.split()) == (("dense",) if dense else ())


@pytest.mark.parametrize(
    ("words", "dense"),
    [
        ("--set retrieval.kind=fusion", True),
        ("--limit 20 --set 'retrieval.kind=dense' --set mcts.c=2", True),
        ("--config bm25.yaml --set rewards.scheme=evo-rag", True),
        ("--set retrieval.kind=dense | tee log 2>&1", True),
        ("--config dense.yaml", True),
        ("--limit 20 # --set retrieval.kind=dense", False),
        ("--set retrieval.kind=unknown", False),
        ("--help", False),
        ("'", False),
        ("", False),
    ],
)
def test_settings_in_the_arguments_change_the_extras(
    words: str, dense: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert required_extras(["annotate"], words) == (("dense",) if dense else ())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("text", ["", "[", "- a", "name: x\nretrieval: 5\n", "\x00"])
def test_a_faulty_recipe_needs_no_extras(text: str, own_folder: Path) -> None:
    (own_folder / "faulty.yaml").write_text(text)
    assert required_extras(["annotate", "--config=faulty.yaml"]) == ()


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_extras_of_a_recipe_agree_with_the_checks_of_load_recipe(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ConfigError("not installed here: run `make setup EXTRAS=dense`")

    monkeypatch.setattr(recipe_checks, "require_dense_extra", missing)
    try:
        load_recipe(file)
        lacking = False
    except ConfigError as error:
        lacking = "EXTRAS=dense" in str(error)
    assert (extras_of(load_recipe_leniently(file)) == ("dense",)) == lacking
