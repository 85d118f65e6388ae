"""How long does a report of many questions take, and how large does it become?

    python -m benchmarks.report_size RUN [--questions 5000] [--pairs 1000000]

Copies the trees and pairs of an annotated run under new ids until it has `--questions` questions,
and writes their report. Then times the statistics of a run of `--pairs` pairs. If Chromium and
Playwright are installed, also measures the first paint of the page.
"""

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from branchwise.pipelines.report.stage import PAGE, write_report
from branchwise.report import facts
from branchwise.runs.folder import existing_run
from branchwise.storage.manifest import PartInfo, add_parts, load_manifest
from branchwise.storage.parts import read_parts, write_part

IDS = ("tree_id", "question_id", "pair_id")
_PER_PART = 100
"""Questions per part, as in a run of this size."""


def copies(rows: pa.Table, times: int) -> Iterator[pa.Table]:
    """Yields `times` copies of some rows, each with its own ids."""
    for number in range(times):
        copy = rows
        for name in set(IDS) & set(rows.column_names):
            at = rows.column_names.index(name)
            ids = pc.binary_join_element_wise(rows[name], pa.scalar(str(number)), "-")
            copy = copy.set_column(at, name, ids)
        yield copy


def enlarge(run: Path, target: Path, questions: int, pairs: int) -> None:
    """Writes a run folder with copies of `run`'s questions, trees and pairs."""
    for name in ("config.yaml", "provenance.json", "manifest.json"):
        shutil.copy(run / name, target / name)
    if (run / "eval").is_dir():
        shutil.copytree(run / "eval", target / "eval")
    question_rows = read_parts(run, "questions")
    times = -(-questions // len(question_rows))
    per_part = max(1, _PER_PART // len(question_rows))
    sources = {"questions": (question_rows, times), "trees": (read_parts(run, "trees"), times)}
    pair_rows = read_parts(run, "pairs")
    sources["pairs"] = (pair_rows, max(times, -(-pairs // len(pair_rows))))
    for table, (rows, n) in sources.items():
        written: list[PartInfo] = []
        waiting: list[pa.Table] = []
        for number, copy in enumerate(copies(rows, n)):
            waiting.append(copy)
            if len(waiting) == per_part * (10 if table == "pairs" else 1) or number == n - 1:
                place = None if table == "questions" else len(written)
                if place is not None or number == n - 1:
                    written.append(write_part(target, table, pa.concat_tables(waiting), place))
                    waiting = []
        add_parts(target, written, [table])


def first_paint_ms(page: Path) -> float | None:
    """Returns milliseconds from the start of loading to the first paint; None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_selector("#tree-canvas svg")
        return float(tab.evaluate(script))


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--questions", type=int, default=5_000)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many, large = Path(folder) / "pairs", Path(folder) / "questions"
        many.mkdir()
        large.mkdir()
        enlarge(options.run, many, 1, options.pairs)
        began = time.perf_counter()
        facts.distributions(many)
        facts.yields(many)
        took = time.perf_counter() - began
        n = load_manifest(many).rows("pairs")
        print(f"statistics of {n:,} pairs: {took:.1f} s, {peak_gb():.2f} GB at most", flush=True)
        enlarge(options.run, large, options.questions, 0)
        began = time.perf_counter()
        write_report(existing_run(large), print)
        took = time.perf_counter() - began
        page = large / PAGE
        size = page.stat().st_size / 1e6
        print(f"report of {options.questions:,} questions: {took:.1f} s, {size:.1f} MB, ", end="")
        print(f"{peak_gb():.2f} GB at most; first paint {first_paint_ms(page)} ms")


if __name__ == "__main__":
    main()
