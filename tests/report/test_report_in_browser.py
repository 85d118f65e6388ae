"""Report in a real browser: sections, keyboard navigation, filters, inert hostile text.

Skipped if Chromium is not installed; `make chromium` installs Debian's. All but one are long.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect, sync_playwright
from report_run import HOSTILE, a_run_with_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (make chromium)")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run_with_report(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(run: Path) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1600, "height": 1000})
        faults: list[str] = []

        def dismissed(dialog: Dialog) -> None:
            faults.append(dialog.message)
            dialog.dismiss()

        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("dialog", dismissed)
        opened.on("request", lambda one: faults.append(one.url) if "http" in one.url[:4] else None)
        opened.goto((run / "report.html").as_uri())
        expect(opened.locator("#tree-canvas svg")).to_be_visible()
        yield opened
        assert faults == []
        browser.close()


def selected(page: Page) -> str:
    found = page.locator('#tree-canvas [aria-selected="true"]')
    expect(found).to_have_count(1)
    return found.get_attribute("data-node") or ""


def test_every_section_is_visible_and_filled(page: Page) -> None:
    for section in ("run", "trees", "pairs", "distributions", "failures"):
        expect(page.locator(f"#{section} h2")).to_be_visible()
    assert page.locator("#distribution-charts figure svg").count() >= 5
    expect(page.locator("#pair .side")).to_have_count(2)


def test_training_curves_include_every_reward_component(page: Page) -> None:
    titles = page.locator("#training-charts figure h3").all_text_contents()
    assert titles == ["grpo: reward", "grpo: reward/accuracy", "grpo: reward/format"]


OPEN_A_FORK = """async () => {
    for (const row of treeView.index) {
        await treeView.open(row);
        if (treeView.tree.nodes[0].children.length > 1) return;
    }
    throw new Error("no question has two first steps");
}"""


@pytest.mark.long
def test_a_tree_can_be_navigated_and_folded_by_keyboard(page: Page) -> None:
    page.evaluate(OPEN_A_FORK)
    page.locator('#tree-canvas [aria-selected="true"]').focus()
    page.keyboard.press("Home")
    assert selected(page) == "0"
    steps = page.locator("#tree-canvas [data-node]").count()
    page.keyboard.press("ArrowRight")
    first = selected(page)
    assert first != "0"
    page.keyboard.press("ArrowDown")
    assert selected(page) not in ("0", first)
    page.keyboard.press("ArrowLeft")
    assert selected(page) == "0"
    page.keyboard.press("Enter")
    expect(page.locator("#tree-canvas [data-node]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#tree-canvas [data-node]")).to_have_count(steps)


@pytest.mark.long
def test_the_iteration_slider_shows_only_steps_grown_so_far(page: Page) -> None:
    slider = page.locator("#tree-iteration")
    whole = page.locator("#tree-canvas [data-node]").count()
    slider.fill("1")
    assert 1 < page.locator("#tree-canvas [data-node]").count() < whole
    slider.fill(slider.get_attribute("max") or "")
    assert page.locator("#tree-canvas [data-node]").count() == whole


@pytest.mark.long
def test_a_chosen_step_shows_why_it_is_preferred(page: Page) -> None:
    page.locator("#tree-pairs").select_option("some")
    page.locator("#tree-list button").first.click()
    expect(page.locator("#node .why").first).to_contain_text(
        re.compile(r"Step \d+ is preferred over step \d+: reward .* against .*, gap")
    )


@pytest.mark.long
def test_a_step_shows_the_reasoning_before_it(page: Page) -> None:
    page.evaluate(OPEN_A_FORK)
    page.locator('#tree-canvas [aria-selected="true"]').focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    reasoning = page.locator("#node details", has_text="Reasoning")
    expect(reasoning.locator(".words")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator(".words")).to_be_visible()
    expect(reasoning.locator(".words")).to_have_text(f"I should look closer. {HOSTILE}")
    expect(page.locator("#node .words").first).not_to_contain_text("look closer")


@pytest.mark.long
def test_filters_and_search_narrow_the_list(page: Page) -> None:
    page.locator("#tree-pairs").select_option("")
    page.locator("#tree-search").fill("currency")
    expect(page.locator("#tree-list button")).to_have_count(1)
    page.locator("#tree-search").fill("")
    expect(page.locator("#tree-list button")).to_have_count(6)
    for option, count in (
        ("right", "row.right"),
        ("wrong", "row.answerable && !row.right && row.searched"),
        ("unanswerable", "!row.answerable"),
    ):
        page.locator("#tree-outcome").select_option(option)
        matching = page.evaluate(f"treeView.index.filter((row) => {count}).length")
        expect(page.locator("#tree-list button")).to_have_count(matching)
    page.locator("#tree-outcome").select_option("")


@pytest.mark.long
def test_a_refused_unanswerable_question_is_not_listed_as_wrong(page: Page) -> None:
    row = "{answerable: false, right: false, searched: true}"
    assert page.evaluate(f"outcomeOf({row})") == "unanswerable"


@pytest.mark.long
def test_a_pair_links_to_its_tree(page: Page) -> None:
    page.locator("#pair-list button").last.click()
    asked = page.locator("#pair h3").inner_text()
    page.get_by_role("button", name="Show in the tree").click()
    expect(page.locator("#tree-title")).to_have_text(asked)


@pytest.mark.long
def test_hostile_text_is_not_interpreted_as_markup(page: Page) -> None:
    page.locator("#tree-search").fill("document.title")
    page.locator("#tree-list button").first.click()
    expect(page.locator("#tree-title")).to_contain_text(HOSTILE)
    assert page.title().endswith("Branchwise report")
    assert page.locator("main img").count() == 0
    page.locator("#tree-search").fill("")


@pytest.mark.long
@pytest.mark.parametrize("width", [375, 800, 1600])
def test_the_page_does_not_scroll_sideways_at_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
