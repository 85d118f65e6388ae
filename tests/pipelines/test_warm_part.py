"""The warm start's own questions: of the part `warm`, the same number of every set of a mix."""

from pathlib import Path

from pipelines.config import load_recipe
from pipelines.warm_start import warm_part


def test_sets_of_a_mix_give_the_same_number_each() -> None:
    drawn = warm_part(load_recipe(Path("configs/real-dpo.yaml")), 200)
    assert drawn.limit == 200
    assert [(one.split, one.limit) for one in drawn.mix] == [("warm", 67)] * 3


def test_a_single_set_gives_them_all() -> None:
    drawn = warm_part(load_recipe(Path("configs/atlas.yaml")), 200)
    assert (drawn.split, drawn.limit, drawn.mix) == ("warm", 200, ())
