"""The web page in a real browser, over the real server and a real model."""

from __future__ import annotations

import pytest
from page_reader import Reader
from serving import serve, until

pytest.importorskip("fastapi", reason="needs the serve extra")
pytestmark = pytest.mark.web


@pytest.fixture
def served(native_library, demo_nb):
    with serve(demo_nb) as served:
        yield served


@pytest.fixture
def reader(browser, served):
    reader = Reader(browser, served)
    yield reader
    reader.context.close()
    assert [url for url in reader.requested if not url.startswith((served.url, "data:"))] == []
    assert reader.refused == [] and reader.errors == []


def test_a_conversation_with_a_model(reader, served):
    reader.shows("#status", "SmolLM2")
    reader.page.get_by_label("Token limit").fill("16")
    reader.ask("What is the capital of France?")
    reader.shows(".stats", "tokens")  # without a speed where the answer came in a moment
    assert reader.text(".answer")
    cached = served.metrics()["edge_kit_cached_tokens_total"]
    reader.ask("And of Italy?")
    until(lambda: reader.page.locator(".assistant .stats").filter(has_text="tokens").count() == 2)
    assert served.metrics()["edge_kit_cached_tokens_total"] > cached + 30  # the first turn


def test_the_stop_button_frees_the_place(reader, served):
    reader.ask("Write a very long story about a river, a boat and a mill.")
    until(lambda: served.metrics()["edge_kit_running_requests"] == 1)
    reader.page.get_by_role("button", name="Stop").click()
    until(lambda: served.metrics()["edge_kit_running_requests"] == 0, 3)
    reader.shows(".finish", "Stopped")
    assert served.metrics()['edge_kit_requests_ended_total{reason="cancelled"}'] == 1
