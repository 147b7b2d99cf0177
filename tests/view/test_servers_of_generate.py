"""The share of each server in the inference figures."""

from __future__ import annotations

from console.view.rows import _by_server


def test_each_servers_share() -> None:
    figures = {"tok_s": 9.0, "tok_s: gpu-3:30000": 830.0, "in_flight: gpu-3:30000": 150.0, "losses: gpu-3:30000": 2.0}
    figures["tok_s: \x1b[31mgpu-4:30000"] = 410.0
    assert _by_server(figures) == (("gpu-3:30000", 830.0, 150.0, 2.0), ("gpu-4:30000", 410.0, 0.0, 0.0))
    assert _by_server({"tok_s": 9.0}) == ()
