"""What each service's webhook takes and answers, and how nothing of its URL, which is a secret, is shown. Pure.

ntfy takes JSON at its root with the topic inside; JSON posted to a topic's own URL it would show as text. Slack reads
``text``, where only & < > have a meaning to be escaped, Discord ``content``, at most 2,000 characters.
Sources: docs.ntfy.sh/publish, docs.slack.dev/messaging, docs.discord.com/developers/resources/webhook.
"""

from __future__ import annotations

import base64
import email.utils
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pipeline.agent.attempts.logs import plain
from pipeline.agent.notices.notify import Message, laid_out
from pipeline.protocol import NotifyFormat

Service = Literal["ntfy", "slack", "discord", "json"]
Fate = Literal["delivered", "later", "unknown", "refused", "broken"]
"""``unknown``: it may have arrived. ``refused``: this message, not all. ``broken``: in vain until it is repaired."""

NTFY_BYTES: Final = 3700  # of 4,096, and with the rest of the JSON less than 8,192 however much is escaped
SLACK_CHARACTERS: Final = 3500
DISCORD_UNITS: Final = 1950
RETRY_AFTER_MAX_S: Final = 3600.0
SHOWN: Final = 160

TOPIC: Final = re.compile(r"[-_A-Za-z0-9]{1,64}")
_MASS_MENTION: Final = re.compile(r"@(?=(?:everyone|here|channel|all)\b)", re.IGNORECASE)
_MARKDOWN: Final = re.compile(r"([\\*_~`|<>\[\]])")
_SUPPRESS_EMBEDS: Final = 4
_ZERO_WIDTH_SPACE: Final = "\u200b"


@dataclass(frozen=True)
class Post:
    """A request to be made."""

    url: str
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What became of a request. ``brief`` fits in a remark; ``after_s``: when the server wants to be asked again."""

    fate: Fate
    brief: str  # "404", "no answer"
    text: str  # "404 Not Found: no_service"
    after_s: float | None = None


class BadURLError(Exception):
    """The secret holds no URL that can be posted to."""


def service_of(url: str, wanted: NotifyFormat) -> Service:
    """Whose webhook it is, told by its host unless the config says it."""
    if wanted != "auto":
        return wanted
    labels = (urlsplit(url).hostname or "").split(".")
    if labels[-3:] in (["hooks", "slack", "com"], ["hooks", "slack-gov", "com"]):
        return "slack"
    if labels[-2:] in (["discord", "com"], ["discordapp", "com"]):
        return "slack" if urlsplit(url).path.rstrip("/").endswith("/slack") else "discord"
    return "ntfy" if "ntfy" in labels else "json"


def check_url(url: str) -> str:
    """The URL without space around it. Raises BadURLError, whose text shows nothing of it."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) and url.isprintable()
    except ValueError:
        sound = False
    if not sound or " " in url:
        raise BadURLError("its secret holds no http:// or https:// URL: store it anew with draftdeck secret set")
    return url


def post_for(url: str, service: Service, message: Message) -> Post:
    """The request that makes ``service`` show a message."""
    bodies = {"ntfy": _ntfy, "slack": _slack, "discord": _discord, "json": _any}
    if service != "ntfy":
        return Post(url, _encoded(bodies[service](message)))
    parts = urlsplit(url)
    base, _, topic = parts.path.rstrip("/").rpartition("/")
    if not TOPIC.fullmatch(topic):
        raise BadURLError("its URL names no ntfy topic: after the host, of letters, digits, - and _")
    return Post(urlunsplit(parts._replace(path=base + "/")), _encoded({"topic": topic, **_ntfy(message)}))


def judge(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Answer:
    """What an answer means. ``now`` is wall time, for a Retry-After that names a date."""
    try:
        name = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        name = str(status)
    said = " ".join(plain(body.decode(errors="replace")).split())[:SHOWN]
    brief, text = str(status), name + (f": {said}" if said else "")
    if 200 <= status < 300:
        return Answer("delivered", brief, name)
    if status in (408, 425, 429) or status >= 500:
        return Answer("later", brief, text, retry_after(headers, now))
    if status in (400, 413, 415, 422):
        return Answer("refused", brief, text)
    return Answer("broken", brief, text)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a Retry-After asks for, as a number or as a date; at most an hour."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(given).timestamp() - now
        except (ValueError, TypeError, IndexError):
            return None
    return min(RETRY_AFTER_MAX_S, max(0.0, seconds)) if math.isfinite(seconds) else None


def hidden(text: str, *urls: str) -> str:
    """``text`` without any part of the URLs: a server may repeat its address, an error name the host."""
    parts: set[str] = set()
    for url in urls:
        pieces = re.split(r"[/?&=#@:]+", url)
        login = unquote(url.partition("//")[2].partition("/")[0].rpartition("@")[0])
        parts |= {url, *pieces, *(unquote(piece) for piece in pieces), base64.b64encode(login.encode()).decode()}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= 4 and part not in ("http", "https", "slack", "services", "webhooks"):
            text = text.replace(part, "***")
    return text


def _ntfy(message: Message) -> dict[str, Any]:
    return {
        "title": _calm(message.title),
        "message": laid_out(message, NTFY_BYTES, lambda text: len(text.encode()), _calm),
        "priority": 4 if message.alarm else 3,
        "tags": ["warning" if message.alarm else "white_check_mark"],
    }


def _slack(message: Message) -> dict[str, Any]:
    lines = laid_out(message, SLACK_CHARACTERS, escape=_slack_escaped)
    return {"text": f"{_slack_escaped(message.title)}\n{lines}", "mrkdwn": False}


def _discord(message: Message) -> dict[str, Any]:
    title = _discord_escaped(message.title)
    lines = laid_out(message, DISCORD_UNITS - _units(title) - 5, _units, _discord_escaped)
    return {"content": f"**{title}**\n{lines}", "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS}


def _any(message: Message) -> dict[str, Any]:
    """A body for a service that is not known: it finds its text under the name that it looks for."""
    both = _slack(message) | _discord(message)
    return {"title": _calm(message.title), "message": laid_out(message, SLACK_CHARACTERS, escape=_calm), **both}


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _calm(text: str) -> str:
    """Without mentions that call everybody."""
    return _MASS_MENTION.sub("@" + _ZERO_WIDTH_SPACE, text)


def _slack_escaped(text: str) -> str:
    return _calm(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord_escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _calm(text))


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
