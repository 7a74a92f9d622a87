"""The page in a real browser, without a screen."""

import os
import shutil

import pytest

CHROMIUM = os.environ.get("AGENTRL_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here: apt-get install chromium, or AGENTRL_CHROMIUM"
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, server):
    """A fresh page; nothing may go wrong in it, and it may ask nobody but its server."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(20_000)
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith(server.url) else trouble.append(request.url))
    yield page
    page.close()
    assert trouble == []


def show(page, server, where):
    page.goto(f"{server.url}#{where}")
    page.wait_for_selector("body[data-ready]")


def ink(page, selector):
    """How many different colours a canvas shows."""
    return page.eval_on_selector(
        selector,
        """(canvas) => new Set(new Uint32Array(
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size""",
    )


def test_curves(page, server, tmp_path):
    show(page, server, "curves")
    assert page.locator("#title").inner_text() == "2 runs"
    plot = "figure[data-metric='rollout/reward_mean'] canvas"
    page.wait_for_selector(plot)
    both = ink(page, plot)
    page.hover(plot, position={"x": 60, "y": 60})
    assert page.locator("#tip b").inner_text() == "step 0"
    assert page.locator("#tip dd").count() == 2
    page.locator(".legend input").nth(1).uncheck()
    page.wait_for_selector(plot)
    page.mouse.move(5, 5)
    assert 1 < ink(page, plot) < both
    page.keyboard.press("/")
    page.keyboard.type("lr")
    assert page.locator("figcaption").all_inner_texts()[0].startswith("actor/lr")
    page.screenshot(path=tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_point_leads_to_its_conversations(page, server):
    show(page, server, "curves")
    page.wait_for_selector("figure[data-metric='rollout/reward_mean'] canvas")
    page.click("figure[data-metric='rollout/reward_mean'] canvas", position={"x": 170, "y": 60})
    page.wait_for_selector(".conversation")
    assert "step=1" in page.url


def test_a_conversation_token_by_token(page, server):
    show(page, server, "conversations?mode=probability&run=run&step=2&line=1")
    page.wait_for_selector(".row.on")
    assert page.locator(".row.on .reward").inner_text() == "1"
    model = page.locator(".segment.model .text").last
    assert model.inner_text() == "It is 391 – trés simple 🙂 <b>step 2</b>"  # as text: no markup came of it
    trained = page.locator(".segment.model [data-t]").first
    trained.hover()
    shown = page.locator("#tip").inner_text()
    assert "90.5%" in shown
    assert "-0.1" in shown
    assert "+1.25" in shown
    page.locator(".segment.tool [data-t]").first.hover()
    assert "not the model's" in page.locator("#tip").inner_text()
    call = page.locator(".call")
    assert call.locator("summary").inner_text().split() == [
        "calculator",
        '{"expression":"17',
        "*",
        '23"}',
        "0.50",
        "s",
        "ok",
    ]


def test_colours_follow_what_is_asked_for(page, server):
    show(page, server, "conversations?mode=probability&run=run&step=2&line=1")
    token = page.locator(".segment.model [data-t]").last
    by_probability = token.evaluate("(element) => element.style.background")
    page.keyboard.press("m")
    by_advantage = token.evaluate("(element) => element.style.background")
    assert "--doubt" in by_probability
    assert "--gain" in by_advantage
    page.keyboard.press("m")
    assert page.locator(".conversation").get_attribute("data-mode") == "trained"
    assert page.locator(".segment.tool .trained").count() == 0


def test_filters_and_keys(page, server):
    show(page, server, "conversations?mode=probability&run=run&step=3")
    assert page.locator(".row").count() == 6
    page.select_option("select[aria-label=outcome]", "infra_error")
    playwright.expect(page.locator(".row")).to_have_count(2)
    page.select_option("select[aria-label=outcome]", "")
    playwright.expect(page.locator(".row")).to_have_count(6)
    page.locator(".rows").focus()
    page.keyboard.press("j")
    playwright.expect(page.locator(".row").nth(1)).to_have_class("row on")
    page.keyboard.press("[")
    playwright.expect(page.locator(".stepper select")).to_have_value("2")
    page.keyboard.press("4")
    page.wait_for_selector(".strip")


def test_two_steps_side_by_side(page, server):
    show(page, server, "conversations?mode=probability&run=run&step=3&line=1")
    page.keyboard.press("c")
    page.wait_for_selector(".conversation + .conversation")
    texts = page.locator(".segment.model .text").all_inner_texts()
    assert (texts[1][-11:-4], texts[3][-11:-4]) == (" step 3", " step 1") or "step 1" in texts[3]
    assert "the same row" in page.locator(".conversation").nth(1).inner_text()


def test_a_timeline_leads_to_the_straggler(page, server, tmp_path):
    show(page, server, "timeline?run=run&step=1")
    page.wait_for_selector(".strip")
    assert ink(page, ".strip") > 3
    assert "6 conversations" in page.locator(".numbers").inner_text()
    assert "wait" in page.locator(".legend").inner_text()
    page.hover(".strip", position={"x": 400, "y": 30})
    assert "1/train.parquet:1/" in page.locator("#tip").inner_text()
    page.screenshot(path=tmp_path / "timeline.png")
    page.click(".strip", position={"x": 400, "y": 30})
    page.wait_for_selector(".conversation")
    assert "train.parquet:1" in page.locator(".conversation h2").inner_text()


def test_light_and_dark(page, server):
    show(page, server, "curves")
    grounds = []
    for _ in range(2):
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.keyboard.press("t")
    assert len(set(grounds)) == 2


@pytest.mark.parametrize("width", [360, 540, 800])
def test_controls_cover_no_curve(page, server, width):
    page.set_viewport_size({"width": width, "height": 700})
    show(page, server, "curves")
    bottoms = page.locator(".bar *").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().bottom)")
    assert max(bottoms) <= page.locator(".curves").bounding_box()["y"]


def test_curves_over_tokens(page, server):
    show(page, server, "curves")
    page.wait_for_selector("figure[data-metric='rollout/reward_mean'] canvas")
    page.select_option("select[aria-label=Over]", "tokens")
    assert "axis=tokens" in page.url
    plot = "figure[data-metric='rollout/reward_mean'] canvas"
    page.wait_for_selector(plot)
    page.hover(plot, position={"x": 46, "y": 60})
    assert page.locator("#tip b").inner_text().startswith("step 0 · ")


def test_rows_grouped_by_prompt(page, server):
    show(page, server, "conversations?mode=probability&run=run&step=3")
    page.check("#group")
    playwright.expect(page.locator(".group")).to_have_count(2)
    assert "3 answers · mean 0.5" in page.locator(".group").first.inner_text()
    page.locator(".row").nth(3).click()
    playwright.expect(page.locator(".row").nth(3)).to_have_class("row on")


def test_tasks_open_their_conversations(page, server):
    show(page, server, "tasks?run=run")
    assert page.locator(".tasks tbody tr").count() == 2
    assert page.locator(".tasks .mean").count() == 6
    page.locator(".tasks tbody a").first.click()
    page.wait_for_selector(".rows .name")
    assert "uid=train.parquet" in page.url
    assert "step=all" in page.url


def test_settings(page, server):
    show(page, server, "settings")
    assert "no settings" in page.locator(".settings").inner_text().lower()


def test_a_table_of_runs_leads_to_the_curves_of_two(page, server):
    show(page, server, "")
    assert page.evaluate("location.hash") == "#runs"  # several runs: the table first
    names = page.locator(".runs tbody tr a")
    assert names.all_inner_texts() == ["run", "other"]
    page.click(".runs th:has-text('run') >> nth=0")
    assert names.all_inner_texts() == ["other", "run"]
    page.locator(".runs th span", has_text="rollout/reward_mean").hover()
    assert "Reward of the scored trajectories" in page.locator("#tip").inner_text()
    page.locator(".runs tbody input").nth(1).check()
    page.get_by_role("button", name="Curves").click()
    page.wait_for_selector("figure[data-metric='rollout/reward_mean'] canvas")
    assert page.evaluate("location.hash") == "#curves?runs=run"
    assert [box.is_checked() for box in page.locator(".legend input").all()] == [True, False]
    page.locator("figcaption span").first.hover()
    assert "A problem:" in page.locator("#tip").inner_text()


def test_a_conversation_as_a_chat(page, server):
    show(page, server, "conversations?mode=chat&run=run&step=2&line=1")
    page.wait_for_selector(".row.on .advantage")
    assert page.locator(".row.on .advantage").inner_text() == "adv +1.25"
    messages = page.locator(".message")
    assert [one.get_attribute("class") for one in messages.all()] == [
        "message user",
        "message assistant",
        "message tool",
        "message assistant",
    ]
    call, answer, reply = (messages.nth(i).inner_text() for i in (1, 2, 3))
    assert "calculator" in call
    assert answer.split() == ["calculator", "ok", "0.50", "s", "391"]
    assert "reward +0.5 (interaction)" in reply
    assert "advantage +1.25" in reply
    assert "It is 391 <img src=x onerror=alert(1)>" in reply  # as text: no markup came of it
    assert page.locator(".message img").count() == 0
    thought = page.locator(".thought")
    assert not thought.locator(".said").is_visible()
    thought.locator("summary").click()
    assert thought.locator(".said").inner_text() == "17 times 23"


def test_several_ledgers_below_a_chat(page, server):
    show(page, server, "conversations?mode=chat&run=run&step=2&line=1")
    page.wait_for_selector(".row.on")
    texts = page.evaluate(
        """async () => {
            const { Conversation } = await import("./conversation.js");
            const { ask } = await import("./dom.js");
            const record = await ask("trajectory", { run: "run", step: 2, line: 1 });
            record.samples.push(record.samples[0]);
            record.extra = { gateway: { shared: [0, 5] } };
            const { element } = new Conversation(record, "chat", "");
            return [...element.querySelectorAll(".ledger summary")].map((one) => one.textContent);
        }"""
    )
    assert texts[0].startswith("Sample 1 of 2: a history of its own, ")
    assert texts[1].startswith("Sample 2 of 2: its first 5 tokens are another sample's, ")


def test_filters_on_a_narrow_page(page, server):
    page.set_viewport_size({"width": 600, "height": 800})
    show(page, server, "conversations?run=run&step=3")
    outcome = page.locator("select[aria-label=outcome]")
    assert not outcome.is_visible()
    page.click(".fold > summary")
    outcome.select_option("infra_error")
    playwright.expect(page.locator(".row")).to_have_count(2)


@pytest.mark.parametrize("where", ["runs", "curves", "conversations?mode=chat&run=run&step=2", "timeline", "settings"])
def test_a_narrow_page_needs_no_scrolling_sideways(page, server, where):
    page.set_viewport_size({"width": 600, "height": 800})
    show(page, server, where)
    assert page.evaluate("document.documentElement.scrollWidth") == 600


def test_an_axis_of_a_line_that_does_not_change(page, server):
    show(page, server, "curves")
    ranges = page.evaluate(
        """async () => { const { range } = await import("./chart.js");
        return [range(0, 0), range(2, 2), range(-2, -2), range(1, 1 + 1e-9), range(0, 1), range(0, 0, true)] }"""
    )
    assert ranges[:3] == [[0, 1], [0, 4], [-4, 0]]
    assert ranges[3] == pytest.approx([0, 2])
    assert ranges[4:] == [[0, pytest.approx(1.06)], [-1, 1]]


def test_a_conversation_as_a_file(page, server, browser, tmp_path):
    show(page, server, "conversations?mode=probability&run=run&step=2&line=1")
    page.wait_for_selector(".row.on")
    with page.expect_download() as download:
        page.keyboard.press("s")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert "<script" not in file.read_text()
    alone = browser.new_page()
    asked = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(file.as_uri())
    assert asked == [file.as_uri()]  # it needs nothing else
    assert alone.locator(".segment.model .text").last.inner_text() == "It is 391 – trés simple 🙂 <b>step 2</b>"
    assert "probability 90.5%" in alone.locator(".segment.model [data-t]").first.get_attribute("title")
    assert alone.locator(".call summary").count() == 1
    alone.close()


def test_staleness_above_a_timeline(page, server):
    show(page, server, "timeline?run=run&step=2")
    page.wait_for_selector(".strip")
    said = page.locator(".ahead").inner_text()
    for shown in ("0.75", "oldest 1", "0: 25%, 1: 75%", "50%", "3", "5 under way", "13%", "6.2%", "17"):
        assert shown in said, f"{shown} is not in {said}"
    assert page.locator(".ages i").count() == 2
    drawing = "(canvas) => canvas.toDataURL()"
    activity = page.eval_on_selector(".strip", drawing)
    page.select_option(".bar select >> nth=-1", "age")
    playwright.expect(page.locator(".legend")).to_contain_text("1 update")
    assert page.eval_on_selector(".strip", drawing) != activity
    page.hover(".strip", position={"x": 400, "y": 30})
    assert "versions 0 to 1, trained at 1" in page.locator("#tip").inner_text()
    show(page, server, "timeline?run=run&step=1")
    playwright.expect(page.locator(".ahead")).to_have_count(0)
    show(page, server, "conversations?mode=probability&run=run&step=2&line=2")
    page.wait_for_selector(".row.on")
    assert page.locator(".segment.model .who small[title]").all_inner_texts() == ["weights 0", "weights 0", "weights 1"]
