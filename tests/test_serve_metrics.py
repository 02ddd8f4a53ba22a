"""What Prometheus is told, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re

import pytest
from exported import ROOT
from serving import serve, until

pytest.importorskip("fastapi", reason="needs the serve extra")
parser = pytest.importorskip("prometheus_client.parser", reason="needs the serve extra")

CHAT = "/v1/chat/completions"
DASHBOARD = ROOT / "edge_kit" / "server" / "examples" / "grafana" / "edge-kit.json"
BODY = {
    "messages": [{"role": "user", "content": "Count to ten, please."}],
    "max_tokens": 12,
    "temperature": 0,
}
N = 3


@pytest.fixture(scope="module")
def server(native_library, demo_nb):
    """One that was asked N times, and once wrongly."""
    with serve(demo_nb, "--answer-cache-mb", 1) as served:
        for k in range(N):
            assert served.post(CHAT, {**BODY, "stream": False, "max_tokens": 12 + k})[0] == 200
        assert served.post(CHAT, {**BODY, "temperature": -1})[0] == 400
        assert served.get("/" + "x" * 50)[0] == 404
        yield served


def test_the_figures_are_those_of_what_was_asked(server):
    until(lambda: server.metrics()["edge_kit_running_requests"] == 0)
    found = server.metrics()
    assert found[f'edge_kit_http_requests_total{{route="{CHAT}",status="200"}}'] == N
    assert found[f'edge_kit_http_requests_total{{route="{CHAT}",status="400"}}'] == 1
    assert found['edge_kit_http_requests_total{route="other",status="404"}'] == 1
    ended = [value for name, value in found.items() if name.startswith("edge_kit_requests_ended_total")]
    assert sum(ended) == N
    n_tokens = found["edge_kit_generated_tokens_total"]
    assert 12 <= n_tokens <= 12 + 13 + 14
    assert found["edge_kit_first_token_seconds_count"] == found["edge_kit_answer_seconds_count"] == N
    assert found["edge_kit_token_seconds_count"] == n_tokens - N
    assert found["edge_kit_token_seconds_sum"] < found["edge_kit_answer_seconds_sum"]
    assert 0 < found["edge_kit_cached_tokens_total"] < found["edge_kit_prompt_tokens_total"]
    assert found["edge_kit_batch_size_count"] == found["edge_kit_batch_size_sum"] >= n_tokens
    assert found['edge_kit_batch_size_bucket{le="+Inf"}'] == found['edge_kit_batch_size_bucket{le="1.0"}']
    assert found["edge_kit_answer_cache_misses_total"] == N and found["edge_kit_answer_cache_bytes"] > 0
    assert found["edge_kit_kept_bytes"] > 0 and found["process_resident_memory_bytes"] > 1e7
    assert [n for n, value in found.items() if n.startswith("edge_kit_status") and value] == [
        'edge_kit_status{status="ready"}'
    ]


def test_prometheus_can_read_it(server):
    families = list(parser.text_string_to_metric_families(server.get("/metrics")[1]))
    assert len(families) > 15 and all(family.documentation for family in families)


def test_the_dashboard_asks_for_what_there_is(server):
    text = DASHBOARD.read_text("utf-8")
    asked = set(re.findall(r"\b(?:edge_kit|process)_\w+", text))
    given = {name.split("{")[0] for name in server.metrics()}
    assert asked <= given
    panels = json.loads(text)["panels"]
    assert all(panel["targets"] and panel["title"] for panel in panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    # Of the server's own families each is on the dashboard.
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in given if name.startswith("edge_kit")}
    assert {name for name in own if not any(one.startswith(name) for one in asked)} <= {
        "edge_kit_kept_sessions"
    }
