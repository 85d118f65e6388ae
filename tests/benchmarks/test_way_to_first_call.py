"""The trace of a stage's way to its first model call."""

from pathlib import Path

from benchmarks.endpoint_process import REPOSITORY
from benchmarks.stage_trace import room_heights
from benchmarks.way_to_first_call import Climb, Stop, run_traced, trace

LITTLE_CHECKOUT = {
    "pyproject.toml": """
        [[tool.importlinter.contracts]]
        type = "layers"
        layers = ["branchwise.pipelines", "branchwise.runs | branchwise.engines", "branchwise.base"]
    """,
    "pipelines/annotate.py": """
        import asyncio
        from base.text import each, shout
        from engines.fake import Engine

        def annotate():
            shout("plan")
            from runs import late
            each(late.plan, "ab")
            each(lambda letter: shout(letter), (letter for letter in "ab"))
            asyncio.run(work())

        async def work():
            await asyncio.sleep(0)
            shout("again")
            await Engine().sample()
            after()

        def after():
            pass
    """,
    "pipelines/cli.py": """
        from pipelines.annotate import after, annotate

        def main(arguments):
            after()
            annotate()
    """,
    "engines/fake.py": """
        class Engine:
            async def sample(self):
                pass
    """,
    "runs/late.py": """
        from base.text import at_import

        at_import()

        def plan(letter):
            pass
    """,
    "base/text.py": """
        def shout(text):
            return [letter.upper() for letter in text]

        def each(function, items):
            for item in items:
                function(item)

        def at_import():
            pass
    """,
}


def test_only_named_functions_between_stage_and_call_are_stops(tmp_path: Path) -> None:
    for name, text in LITTLE_CHECKOUT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("\n        ", "\n"))
    way = run_traced(tmp_path, tmp_path, ["annotate"])
    assert way.stops == [
        Stop("pipelines", "pipelines.annotate:annotate", 1),
        Stop("base", "base.text:shout", 4),
        Stop("base", "base.text:each", 2),
        Stop("runs", "runs.late:plan", 2),
        Stop("pipelines", "pipelines.annotate:work", 1),
    ]
    assert way.climbs == [
        Climb("base.text:each", "runs.late:plan", 2),
        Climb("base.text:each", "pipelines.annotate:annotate.<locals>.<lambda>", 2),
    ]
    assert way.visits == ["pipelines", "base", "runs", "pipelines"]
    assert way.first_call == "engines.fake:Engine.sample"


def test_annotate_reaches_the_first_call_of_the_policy() -> None:
    way = trace(REPOSITORY, "annotate")
    names = [stop.name for stop in way.stops]
    assert names[0] == "pipelines.annotate.stage:annotate"
    assert way.first_call == "engines.ledgered:LedgeredEngine.sample"
    assert names.index("storage.ledger:Ledger.__init__") < names.index("mcts.search:search")
    # Nothing has been judged before the first reply.
    assert "agent.environment:Environment.act" in names
    assert not any(name.startswith("annotation.judge:Judge.") for name in names)
    heights = room_heights(REPOSITORY)
    for climb in way.climbs:
        caller, callee = (name.split(".")[0].split(":")[0] for name in (climb.caller, climb.callee))
        assert heights[caller] < heights[callee]
