"""Interrupts a training after one of its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from branchwise.training import training_run
from branchwise.training.curves import curves


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """Interrupts the training in the block as soon as the curve has the step."""

    def killing(*arguments: Any) -> Any:
        callback = curves(*arguments)

        class Killing(type(callback)):  # type: ignore[misc]
            def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                super().on_log(args, state, control, **more)
                if state.global_step == step:
                    raise KeyboardInterrupt

        return Killing()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "curves", killing)
        with pytest.raises(KeyboardInterrupt):
            yield
