"""What each service is sent, what its answers mean, and that nothing of a URL is shown."""

from __future__ import annotations

import email.utils
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.notices.notify import Message
from pipeline.agent.notices.webhooks import (
    BadURLError,
    Service,
    check_url,
    hidden,
    judge,
    post_for,
    retry_after,
    service_of,
)
from pipeline.protocol import NotifyFormat

MESSAGE = Message("kimi on gpu-3: prep:B4 failed", ("14:02 UTC prep:B4 failed: a < b & @everyone in train_sft",))
LONG = Message("t", tuple(f"{number} " + "@all <&_\u00e9\U0001f600" * 25 for number in range(50)))


def body(service: Service, message: Message = MESSAGE, url: str = "https://x.org/hook") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(post_for(url, service, message).body)
    return made


@pytest.mark.parametrize(
    ("url", "wanted", "service"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "auto", "slack"),
        ("https://hooks.slack.com.evil.org/services/T0/B0/x", "auto", "json"),
        ("https://discord.com/api/webhooks/1/x", "auto", "discord"),
        ("https://canary.discord.com/api/v10/webhooks/1/x", "auto", "discord"),
        ("https://discordapp.com/api/webhooks/1/x", "auto", "discord"),
        ("https://discord.com/api/webhooks/1/x/slack", "auto", "slack"),
        ("https://ntfy.sh/topic", "auto", "ntfy"),
        ("https://ntfy.example.org/topic", "auto", "ntfy"),
        ("https://alerts.example.org/topic", "auto", "json"),
        ("https://alerts.example.org/topic", "ntfy", "ntfy"),
    ],
)
def test_whose_webhook_it_is(url: str, wanted: NotifyFormat, service: Service) -> None:
    assert service_of(url, wanted) == service


def test_ntfy_gets_its_json_at_its_root() -> None:
    post = post_for("https://me:pw@ntfy.example.org/alerts-4711?auth=abc", "ntfy", MESSAGE)
    assert post.url == "https://me:pw@ntfy.example.org/?auth=abc"
    made = json.loads(post.body)
    assert made["topic"] == "alerts-4711" and made["title"] == MESSAGE.title and made["priority"] == 4
    assert made["message"].startswith("14:02 UTC prep:B4 failed: a < b & @\u200beveryone in train_sft")


@pytest.mark.parametrize(
    "url", ["https://ntfy.sh", "https://ntfy.sh/", "https://ntfy.sh/no topic", "https://ntfy.sh/%20"]
)
def test_an_ntfy_url_needs_a_topic(url: str) -> None:
    with pytest.raises(BadURLError, match="topic"):
        post_for(url, "ntfy", MESSAGE)


def test_slack_gets_text_in_which_nothing_has_a_meaning() -> None:
    made = body("slack", Message("t", ("<!channel> <@U1> &amp; @here",)))
    assert made == {"text": "t\n&lt;!channel&gt; &lt;@U1&gt; &amp;amp; @\u200bhere", "mrkdwn": False}


def test_discord_gets_content_that_mentions_nobody() -> None:
    made = body("discord", Message("t", ("<@&12> [x](http://evil) train_sft `a` @everyone",)))
    assert made["content"] == "**t**\n\\<@&12\\> \\[x\\](http://evil) train\\_sft \\`a\\` @\u200beveryone"
    assert made["allowed_mentions"] == {"parse": []}


def test_a_service_that_is_not_known_finds_its_text_under_any_of_the_names() -> None:
    made = body("json")
    assert made["title"] == MESSAGE.title
    for name in ("message", "text", "content"):
        assert "prep:B4 failed" in made[name] and "@everyone" not in made[name]


def test_limits_hold_and_the_newest_lines_are_kept() -> None:
    for service, name in (("ntfy", "message"), ("slack", "text"), ("discord", "content"), ("json", "content")):
        text = body(service, LONG)[name]  # type: ignore[arg-type]
        assert "\n49 " in text and "\n0 " not in text and "earlier ones left out)" in text
    assert len(body("ntfy", LONG)["message"].encode()) <= 4096
    assert len(post_for("https://ntfy.sh/t", "ntfy", LONG).body) <= 8192
    assert len(body("discord", LONG)["content"].encode("utf-16-le")) // 2 <= 2000
    assert len(body("slack", LONG)["text"]) <= 4000


@pytest.mark.parametrize(
    ("status", "fate"),
    [(200, "delivered"), (204, "delivered"), (429, "later"), (500, "later"), (503, "later"), (408, "later"),
     (400, "refused"), (413, "refused"), (401, "broken"), (403, "broken"), (404, "broken"), (410, "broken"),
     (302, "broken"), (777, "later")],
)  # fmt: skip
def test_what_an_answer_means(status: int, fate: str) -> None:
    answer = judge(status, {}, b"no_service\x1b[31m\n" * 50, 0.0)
    assert answer.fate == fate and answer.brief == str(status)
    assert len(answer.text) < 300 and "\x1b" not in answer.text
    assert ("no_service" in answer.text) is (fate != "delivered")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("7", 7.0), ("0.25", 0.25), ("99999999", 3600.0), ("-3", 0.0), ("soon", None), ("", None), ("nan", None),
     (email.utils.formatdate(1_000_030.0, usegmt=True), 30.0), ("Wed, 99 Xyz 2020", None)],
)  # fmt: skip
def test_how_long_a_server_wants_to_be_left_alone(given: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": given}, 1_000_000.0) == seconds


@pytest.mark.parametrize(
    "secret",
    ["", "hooks.slack.com/x", "file:///etc/passwd", "https://", "http://[::1", "http://a:b/", "http://a/\nb"],
)
def test_a_secret_that_is_no_url_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(BadURLError) as refused:
        check_url(secret)
    assert str(refused.value) == "its secret holds no http:// or https:// URL: store it anew with draftdeck secret set"


def test_a_url_may_end_in_a_line_break() -> None:
    assert check_url(" https://ntfy.sh/t\n") == "https://ntfy.sh/t"


@given(st.sampled_from(["alerts-4711", "T0PSECRET", "pa55word", "gpu.example.org", "tk_abc%2Fdef", "tk_abc/def"]))
def test_nothing_of_a_url_is_shown(part: str) -> None:
    url = "https://me:pa55word@gpu.example.org/T0PSECRET/alerts-4711?auth=tk_abc%2Fdef"
    shown = hidden(f"404 Not Found: no topic {part} at {url}, name '{part}'", url)
    assert part not in shown and shown.startswith("404 Not Found: no topic ***")
