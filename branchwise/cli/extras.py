"""Lists the extras of a stage and its recipe, in addition to `cpu`, for the Makefile.

    ARGS="--limit 20" python -m branchwise.cli.extras annotate --run=datasets/mine

Takes the arguments of `branchwise`; ARGS holds further words of the stage's command line. Prints
one name per line. If the arguments or the recipe are wrong, it prints those of the stage, which
reports the error.
"""

if __name__ == "__main__":
    from .entry import exit_on_interrupt

    exit_on_interrupt()  # before the other imports

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from branchwise.base import ConfigError
from branchwise.pipelines.stages import STAGES
from branchwise.runs import extras_of, load_plugins, load_recipe_leniently

from .command_line import parser, recipe_file


def required_extras(words: Sequence[str], shell_words: str = "") -> tuple[str, ...]:
    """Returns the extras of a command line's recipe, or none if one of them is wrong.

    Args:
        shell_words: more arguments, as a shell would read them; redirections change nothing.
    """
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        try:
            options = parser().parse_known_args([*words, *_words(shell_words)])[0]
            if options.stage is None:
                return ()
            load_plugins(options.plugins)
            return extras_of(load_recipe_leniently(recipe_file(options), options.overrides))
        except (ConfigError, SystemExit):
            return ()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return []


if __name__ == "__main__":
    extras = required_extras(sys.argv[1:], os.environ.get("ARGS", ""))
    print(*STAGES[sys.argv[1]].extras, *extras, sep="\n")
