"""One browser window at the web page, for its tests."""
from __future__ import annotations

from pathlib import Path

SCREENSHOTS = Path(__file__).resolve().parent.parent / "build" / "screenshots"


class Reader:
    """A window at the page, and what went on in it. requested: URLs; refused: by the Content-Security-Policy;
    errors: of scripts."""

    def __init__(self, browser, server, **options):
        self.context = browser.new_context(**{"locale": "en-US", **options})
        self.context.set_default_timeout(30_000)
        self.requested, self.errors, self.refused = [], [], []
        self.context.on("request", lambda request: self.requested.append(request.url))
        self.context.on("console", self._note)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.goto(server.url)
        self.question = self.page.locator("#question")

    def _note(self, message):
        if "Content Security Policy" in message.text:
            self.refused.append(message.text)

    def _dialog(self, dialog):
        self.errors.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def ask(self, text):
        self.question.fill(text)
        self.question.press("Enter")
        return self.page.locator(".assistant").last

    def text(self, selector) -> str:
        """What the last element at `selector` shows, once it is there."""
        return self.page.locator(selector).last.inner_text()

    def shows(self, selector, text):
        self.page.locator(selector).filter(has_text=text).last.wait_for()

    def scrolls_sideways(self) -> bool:
        return self.page.evaluate(
            "[document.documentElement, document.getElementById('scroll')]"
            ".some((e) => e.scrollWidth > e.clientWidth)"
        )

    def screenshot(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.evaluate("document.fonts.ready")
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", animations="disabled")
