"""The web page in a real browser, over a server with scripted answers. Screenshots: build/screenshots."""
from __future__ import annotations

import re
import threading

import pytest
from hostile_answers import HOSTILE
from page_reader import SCREENSHOTS, Reader
from page_server import MODEL, Drop, PageServer, Refusal, end, say, think
from serving import until

pytestmark = pytest.mark.web

PHONE = {"width": 360, "height": 740}

CUBES = r"""Each cube is a **difference of two squares** of triangular numbers $T_n = \frac{n(n+1)}{2}$:

$$\sum_{k=1}^{n} k^3 = \left(\frac{n(n+1)}{2}\right)^2 = T_n^2$$

So $n^3 = T_n^2 - T_{n-1}^2$. The first ones:

| n | n³ | sum | root |
|--:|---:|----:|-----:|
| 1 | 1 | 1 | 1 |
| 2 | 8 | 9 | 3 |
| 3 | 27 | 36 | 6 |

```python
def sum_of_cubes(n):
    return (n * (n + 1) // 2) ** 2
```
"""
THOUGHTS = (
    "The sum of the first cubes: 1, 9, 36, 100. These are squares of 1, 3, 6, 10, the triangular numbers. "
    r"A proof by induction: $T_n^2 - T_{n-1}^2 = (T_n - T_{n-1})(T_n + T_{n-1}) = n \cdot n^2$."
)


@pytest.fixture
def server():
    with PageServer() as server:
        yield server


@pytest.fixture
def gate():
    """What an answer in a script waits for."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def open_page(browser, server):
    """open_page(**options of a browser's context) -> Reader. In the end: it asked no other server anything,
    the Content-Security-Policy had nothing to refuse, and no script failed."""
    readers = []

    def open_reader(**options):
        readers.append(Reader(browser, server, **options))
        return readers[-1]

    yield open_reader
    for reader in readers:
        reader.context.close()
    for reader in readers:
        assert [url for url in reader.requested if not url.startswith((server.url, "data:"))] == []
        assert reader.refused == []
        assert reader.errors == []


@pytest.fixture
def reader(open_page):
    return open_page()


def test_an_answer_streams_and_its_speed_is_shown(reader, server, gate):
    server.answers["hello"] = [say("Good "), gate, 0.1, say("morning."), *end(tokens=40)]
    reader.ask("hello")
    reader.shows(".answer", "Good")
    assert reader.page.get_by_role("button", name="Stop").is_visible()
    assert not reader.page.get_by_role("button", name="Send").is_visible()
    gate.set()
    reader.shows(".answer", "Good morning.")
    reader.shows(".stats", "40 tokens")
    assert re.search(r"\d+\.\d tokens/s · 40 tokens · first token after \d\.\d s", reader.text(".stats"))
    assert reader.page.locator(".finish:visible, .error:visible, .state:visible").count() == 0
    assert server.asked[0]["model"] == MODEL and server.asked[0]["stream"] is True


def test_thinking_shows_its_time_and_folds_when_the_answer_begins(reader, server, gate):
    second = threading.Event()
    server.answers["why"] = [gate, think("Let me **see**."), second, say("Because."), *end()]
    reader.ask("why")
    reader.shows(".state", "Reading … ")
    gate.set()
    reader.shows("summary", "Thinking … ")
    reader.shows("summary", re.compile(r"0\.[3-9] s"))  # the clock runs without a token
    assert reader.page.locator("details[open] strong").inner_text() == "see"
    second.set()
    reader.shows("summary", "Thought for ")
    reader.shows(".answer", "Because.")
    assert not reader.page.locator(".reasoning .markdown").is_visible()
    reader.page.locator("summary").click()
    assert reader.text(".reasoning .markdown") == "Let me see."


def test_reasoning_that_the_user_opened_stays_open(reader, server, gate):
    server.answers["why"] = [think("Hm."), gate, say("Because."), *end()]
    reader.ask("why")
    reader.shows("summary", "Thinking")
    reader.page.locator("summary").click()
    assert not reader.page.locator(".reasoning .markdown").is_visible()
    reader.page.locator("summary").click()
    gate.set()
    reader.shows(".stats", "tokens")
    assert reader.page.locator(".reasoning .markdown").is_visible()


def test_markdown_and_latex_are_drawn(reader, server):
    text = CUBES + "\n3. three\n\n- [x] done\n- costs $5 and $10, not \\(x_1*y*\\)\n\n"
    text += "\\[\na - b\n= c\n\\]\n\n$\\nosuch{1}$"
    server.answers["cubes"] = [say(text[i : i + 7]) for i in range(0, len(text), 7)] + end()
    answer = reader.ask("cubes")
    reader.shows(".stats", "tokens")
    assert answer.locator("strong").first.inner_text() == "difference of two squares"
    assert answer.locator("td").count() == 12
    assert answer.locator("td").first.get_attribute("align") == "right"
    assert answer.locator("ol").get_attribute("start") == "3"
    assert answer.locator("pre code").inner_text().startswith("def sum_of_cubes")
    assert answer.locator(".math.display .katex-display").count() == 2
    assert answer.locator(".math:not(.display) .katex").count() == 3
    assert "costs $5 and $10" in answer.inner_text() and "☑ done" in answer.inner_text()
    assert answer.locator("code.math").inner_text() == r"\nosuch{1}"
    drawn = answer.locator(".katex-display .katex-html").first.bounding_box()
    assert drawn["height"] > 30, "a sum with its limits is higher than a line: is the style sheet there?"
    loaded = "[...document.fonts].some((f) => f.family == 'KaTeX_Main' && f.status == 'loaded')"
    assert reader.page.evaluate(loaded)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_an_answer_runs(reader, server, text):
    server.answers["x"] = [think(text), say(text[: len(text) // 2]), say(text[len(text) // 2 :]), *end()]
    answer = reader.ask("x")
    reader.shows(".stats", "tokens")
    reader.page.locator("summary").click()
    for link in answer.locator("a").all():
        assert re.match("https?:", link.get_attribute("href"))
        assert set(link.evaluate("(e) => e.getAttributeNames()")) <= {"href", "target", "rel"}
        link.hover()
    for element in answer.get_by_text("click", exact=True).all():
        element.click()
    assert answer.locator("img, script, svg, iframe, form, style, button:visible").count() == 0
    reader.page.wait_for_timeout(50)  # an image's onerror comes later
    assert reader.page.evaluate("window.ran") is None
    assert reader.page.locator("#question").is_visible()


@pytest.mark.parametrize("text", [">" * 5000, "$" + "{" * 1900 + "}" * 1900 + "$"], ids=["quotes", "formula"])
def test_an_answer_nested_too_deep_is_shown_as_it_is(reader, server, text):
    server.answers["x"] = [say(text), *end()]
    answer = reader.ask("x")
    reader.shows(".stats", "tokens")
    assert text.strip("$") in answer.text_content()
    assert reader.page.get_by_role("button", name="Send").is_visible()


@pytest.mark.parametrize("html", [text for text in HOSTILE if text.startswith("<")])
def test_html_past_the_first_guard_is_stopped_by_the_second(reader, html):
    script = """async (html) => {
        const { sanitize } = await import('/web/markdown.js');
        const box = document.createElement('div');
        document.body.append(box);
        box.append(sanitize(html));
        await new Promise((done) => setTimeout(done, 50));
        const names = [...box.querySelectorAll('*')].flatMap((e) => [e.localName, ...e.getAttributeNames()]);
        return [window.ran ?? null, names, box.querySelector('a')?.getAttribute('href') ?? null];
    }"""
    ran, names, href = reader.page.evaluate(script, html)
    assert ran is None and href is None
    assert set(names) <= {"a", "p", "target", "rel", "table"}
    reader.refused.clear()  # Chromium names a style even when DOMPurify parses it outside the page


def test_what_passed_all_guards_would_still_not_run(browser, server):
    reader = Reader(browser, server)
    script = """(html) => {
        const box = document.createElement('div');
        document.body.append(box);
        box.innerHTML = html;
        const script = document.createElement('script');
        script.textContent = "window.ran = 'inline'";
        box.append(script);
    }"""
    reader.page.evaluate(script, HOSTILE[0] + "<img src=https://example.com/pixel.png>")
    reader.page.wait_for_timeout(100)
    assert reader.page.evaluate("window.ran") is None
    assert len(reader.refused) == 3, "handler, script and foreign image"
    reader.context.close()


def test_stop_leaves_what_came_and_frees_the_server(reader, server, gate):
    server.answers["count"] = [say("1 2 3"), gate, *end()]
    server.answers["and now"] = [say("4"), *end()]
    reader.ask("count")
    reader.shows(".answer", "1 2 3")
    reader.page.get_by_role("button", name="Stop").click()
    reader.shows(".finish", "Stopped.")
    assert server.left.wait(5), "the server still sends"
    assert reader.text(".answer") == "1 2 3"
    reader.ask("and now")
    reader.shows(".answer", "4")
    contents = [message["content"] for message in server.asked[-1]["messages"]]
    assert contents == ["count", "1 2 3", "and now"]


@pytest.mark.parametrize(
    "parts, reason, text",
    [
        ([think("Hm")], "length", "limit of tokens was reached while thinking"),
        ([think("Hm"), say("So")], "length", "the answer reached the limit"),
        ([], "length", "no longer fits"),
        ([say("ha ha ha")], "repetition", "repeating itself"),
        ([say("ha")], "cancelled", "Stopped."),
    ],
)
def test_why_an_answer_ended_is_said(reader, server, parts, reason, text):
    server.answers["x"] = parts + end(reason)
    reader.ask("x")
    reader.shows(".finish", text)


def test_the_model_gets_answers_without_reasoning(reader, server):
    server.answers["one"] = [think("Hm."), say("First."), *end()]
    server.answers["two"] = [say("Second."), *end()]
    reader.page.get_by_label("Token limit").fill("77")
    reader.ask("one")
    reader.shows(".stats", "tokens")
    reader.ask("two")
    reader.shows(".answer", "Second.")
    assert server.asked[-1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "First."},
        {"role": "user", "content": "two"},
    ]
    assert server.asked[-1]["max_tokens"] == 77


def test_a_busy_server_says_when_to_try_again(reader, server):
    server.answers["x"] = Refusal(429, {"error": {"message": "queue full"}}, {"Retry-After": "7"})
    reader.ask("x")
    reader.shows(".error", "The server is busy: try again in 7 s.")
    server.answers["x"] = [say("Here."), *end()]
    reader.page.get_by_role("button", name="Try again").click()
    reader.shows(".answer", "Here.")
    assert [message["content"] for message in server.asked[-1]["messages"]] == ["x"]
    assert reader.page.locator(".message").count() == 2


def test_a_missing_key_is_asked_for(reader, server):
    server.key = "s3cret"
    server.answers["x"] = [say("Welcome."), *end()]
    reader.ask("x")
    field = reader.page.get_by_role("dialog").locator("input")
    assert field.get_attribute("type") == "password"
    field.fill("wrong")
    field.press("Enter")
    reader.shows("dialog[open]", "asks for an API key")
    field.fill("s3cret")
    reader.page.get_by_role("button", name="OK").click()
    reader.shows(".answer", "Welcome.")
    reader.page.reload()
    reader.ask("x")
    until(lambda: len(server.asked) == 2)
    assert reader.page.evaluate("JSON.stringify(localStorage).includes('s3cret')") is False


def test_a_lost_connection_is_said_in_one_line(reader, server):
    server.answers["x"] = [say("Half"), Drop]
    reader.ask("x")
    reader.shows(".error", "The connection to the server was lost.")
    assert reader.text(".answer") == "Half"
    server.shutdown()
    server.server_close()
    reader.page.get_by_role("button", name="Try again").click()
    reader.shows(".error", "The connection to the server was lost.")
    reader.shows("#status", "server not reached")


def test_other_errors_show_what_the_server_says(reader, server):
    server.answers["x"] = Refusal(400, {"error": {"message": "max_tokens 0, expected 1 or more"}})
    reader.ask("x")
    reader.shows(".error", "an error (400): max_tokens 0, expected 1 or more")
    server.answers["y"] = [say("It goes on."), *end()]
    reader.ask("y")
    reader.shows(".answer", "It goes on.")
    assert [message["content"] for message in server.asked[-1]["messages"]] == ["y"]


def test_the_page_says_that_the_model_loads(open_page, server):
    server.status = "loading"
    reader = open_page()
    reader.shows("#status", "loading the model")
    server.status = "ready"
    reader.shows("#status", MODEL)


def test_conversations_survive_a_reload(reader, server):
    page = reader.page
    server.answers |= {"one": [think("a"), say("**First**"), *end()], "two": [say("Second"), *end()]}
    reader.ask("one")
    reader.shows(".stats", "tokens")
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".message").count() == 0
    reader.ask("two")
    reader.shows(".stats", "tokens")
    page.reload()
    titles = page.locator("#sessions .open")
    assert titles.all_inner_texts() == ["two", "one"]
    assert reader.text(".answer") == "Second"
    titles.nth(1).click()
    assert page.locator(".answer strong").inner_text() == "First"
    reader.shows("summary", "Thought for")
    page.get_by_role("button", name="Rename: one").click()
    page.locator("#dialog-input").fill("Cubes & <b>squares</b>")
    page.get_by_role("button", name="OK").click()
    reader.shows("#title", "Cubes & <b>squares</b>")
    page.get_by_role("button", name="Delete: two").click()
    page.get_by_role("button", name="OK").click()
    page.reload()
    assert titles.all_inner_texts() == ["Cubes & <b>squares</b>"]
    assert page.locator(".message").count() == 2


def test_an_answer_goes_on_while_another_conversation_is_shown(reader, server, gate):
    server.answers |= {"slow": [say("Slow"), gate, say(" done"), *end()], "fast": [say("Fast"), *end()]}
    reader.ask("slow")
    reader.shows(".answer", "Slow")
    reader.page.get_by_role("button", name="New conversation").click()
    reader.ask("fast")
    reader.shows(".stats", "tokens")
    gate.set()
    reader.page.locator("#sessions .open", has_text="slow").click()
    reader.shows(".answer", "Slow done")
    reader.shows(".stats", "tokens")


def test_a_reload_amid_an_answer_keeps_what_came(reader, server, gate):
    server.answers["x"] = [say("Half an answer"), gate, *end()]
    reader.ask("x")
    reader.shows(".answer", "Half an answer")
    reader.page.reload()
    reader.shows(".answer", "Half an answer")
    reader.shows(".error", "The connection to the server was lost.")
    gate.set()
    reader.page.get_by_role("button", name="Try again").click()
    reader.shows(".stats", "tokens")


def test_chinese(open_page, server):
    server.answers["鸡兔同笼"] = [think("设鸡 $x$ 只"), say("鸡有 **23** 只，兔有 12 只。"), *end("length")]
    reader = open_page(locale="zh-CN", viewport={"width": 1200, "height": 760})
    page = reader.page
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.get_by_role("button", name="发送").is_visible()
    reader.ask("鸡兔同笼")
    reader.shows(".finish", "已截断")
    reader.shows("summary", "思考了")
    assert page.get_by_role("button", name="新建对话").is_visible()
    reader.screenshot("chinese")
    page.get_by_label("语言").select_option("en")
    reader.shows("summary", "Thought for")
    assert page.get_by_role("button", name="New conversation").is_visible()
    page.reload()
    assert page.get_by_role("button", name="New conversation").is_visible()


def brightness(reader) -> float:
    colour = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def test_dark_and_light(open_page):
    dark, light = open_page(color_scheme="dark"), open_page(color_scheme="light")
    assert brightness(dark) < 60 and brightness(light) > 200
    light.page.get_by_label("Theme").select_option("dark")
    assert brightness(light) < 60
    light.page.reload()
    assert brightness(light) < 60
    light.page.get_by_label("Theme").select_option("auto")
    assert brightness(light) > 200


def test_phone_width(open_page, server):
    wide = "\n\n`" + "x" * 300 + "`\n\n$$" + "+".join(f"a_{{{i}}}" for i in range(60)) + "$$\n\n" + "w" * 300
    table = "\n\n|" + "column |" * 12 + "\n|" + "--|" * 12 + "\n|" + "cell |" * 12
    server.answers["a" * 200] = [think(THOUGHTS), say(CUBES + wide + table), *end("length")]
    reader = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    assert not reader.scrolls_sideways()
    reader.ask("a" * 200)
    reader.shows(".stats", "tokens")
    reader.page.locator("summary").click()
    assert not reader.scrolls_sideways()
    sidebar = reader.page.locator("#sidebar")
    assert not sidebar.is_visible()
    menu = reader.page.locator("#menu")
    menu.click()
    sidebar.wait_for()
    assert menu.get_attribute("aria-expanded") == "true"
    reader.page.get_by_role("button", name="New conversation").click()
    sidebar.wait_for(state="hidden")
    assert not reader.scrolls_sideways()


def test_enter_sends_and_shift_enter_does_not(reader, server):
    server.answers["one\ntwo"] = [say("Two lines."), *end()]
    height = reader.question.bounding_box()["height"]
    reader.question.type("one")
    reader.question.press("Shift+Enter")
    reader.question.type("two")
    assert reader.question.bounding_box()["height"] > height
    reader.question.dispatch_event("keydown", {"key": "Enter", "isComposing": True})  # of an input method
    assert server.asked == []
    reader.question.press("Enter")
    reader.shows(".answer", "Two lines.")
    assert reader.question.input_value() == ""
    assert reader.text(".user") == "one\ntwo"
    reader.question.press("Enter")  # nothing to send
    assert len(server.asked) == 1


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_every_control_has_a_name(open_page, server, locale):
    server.answers["x"] = Refusal(500, {"error": "broken"})
    reader = open_page(locale=locale)
    reader.ask("x")
    reader.page.locator(".error button").wait_for()
    snapshot = reader.page.locator("body").aria_snapshot()
    controls = re.findall(r"^\s*- (?:button|textbox|spinbutton|combobox|log|navigation).*$", snapshot, re.M)
    assert len(controls) >= 8
    assert [line for line in controls if '"' not in line] == []


def test_screenshots(open_page, server, gate):
    question = "Why is the sum of the first n cubes always a square?"
    server.answers[question] = [0.8, think(THOUGHTS), gate, say(CUBES), *end(tokens=14)]
    size = {"width": 1200, "height": 760}
    reader = open_page(viewport=size)
    reader.shows("#status", MODEL)
    reader.screenshot("empty")
    reader.ask(question)
    reader.shows("summary", re.compile(r"Thinking … 1\.\d s"))
    reader.screenshot("thinking")
    gate.set()
    reader.shows(".stats", "tokens")
    reader.screenshot("answered")
    state = reader.context.storage_state()
    phone = {"viewport": PHONE, "device_scale_factor": 2}
    for name, options in {"phone": phone, "dark": {"viewport": size, "color_scheme": "dark"}}.items():
        other = open_page(storage_state=state, **options)
        other.shows("#status", MODEL)
        other.screenshot(name)
    for name in ("empty", "thinking", "answered", "phone", "dark"):
        assert (SCREENSHOTS / f"{name}.png").stat().st_size > 10_000
