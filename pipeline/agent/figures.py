"""The history of figures, in the journal's file but over a connection of its own.

It may be used from another thread than the journal, and loses at most its newest seconds when the machine fails.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEPT_OF_A_JOB: Final = 64
"""The figures of its own that a job may have; every name takes space for as long as the run lasts."""
NAME_LIMIT: Final = 64  # characters
OF_SERVER: Final = ("running", "queued", "kv_use", "tok_s", "accept_length")
OURS: Final = frozenset({"cpu_percent", "memory", "rate", "done", *OF_SERVER})
"""What the agent itself measures of a job."""
RECENT_S: Final = 2 * 3600.0
HISTORY_S: Final = 60 * 86400.0
EACH_SERIES: Final = "series IN (SELECT id FROM series)"
"""Lets a range of times be found by the primary key, without reading every row."""


class Figures:
    """The history of figures by (job, figure); job "" is the host. Newest two hours as written, then minute means."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._know_series()
        self._minute: dict[int, list[float]] = {}
        self._minute_began: float | None = None
        self.refused: dict[str, str] = {}
        """By job that gave more figures than are kept: the first that was left out."""
        newest = "SELECT max((SELECT max(at) FROM recent WHERE series = id)) FROM series"
        self._newest: float = self._db.execute(newest).fetchone()[0] or 0.0

    def close(self) -> None:
        self._db.close()

    def add(self, at: float, values: Mapping[tuple[str, str], float]) -> None:
        """Write one value of each figure, all at wall time ``at``.

        What an earlier clock has dated later than that is removed: the newest value must be the last one.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            if at < self._newest:
                for table in ("recent", "history"):
                    self._db.execute(f"DELETE FROM {table} WHERE {EACH_SERIES} AND at > ?", (at,))  # noqa: S608
            rows = [(number, at, value) for key, value in values.items() if (number := self._number(*key))]
            self._db.executemany("INSERT OR REPLACE INTO recent VALUES (?, ?, ?)", rows)
            for number, _, value in rows:
                self._minute.setdefault(number, []).append(value)
            if self._minute_began is None:
                self._minute_began = at
            elif not 0 <= at - self._minute_began < 60:
                means = [(number, at, sum(found) / len(found)) for number, found in self._minute.items()]
                self._db.executemany("INSERT OR REPLACE INTO history VALUES (?, ?, ?)", means)
                for table, kept_s in (("recent", RECENT_S), ("history", HISTORY_S)):
                    old = f"DELETE FROM {table} WHERE {EACH_SERIES} AND at < ?"  # noqa: S608
                    self._db.execute(old, (at - kept_s,))
                self._minute, self._minute_began = {}, at
            self._db.execute("COMMIT")
            self._newest = at
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._know_series()
            raise

    def _know_series(self) -> None:
        self._series = {(job, figure): number for number, job, figure in self._db.execute("SELECT * FROM series")}
        self._own = Counter(job for job, figure in self._series if figure not in OURS)

    def query(self, job: str, figure: str, points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """At most ``points`` means over the whole run, oldest first: times and values."""
        number = self._series.get((job, figure))
        if number is None:
            return (), ()
        bound = "SELECT min(at), max(at) FROM recent WHERE series = :series"
        first, last = self._db.execute(bound, {"series": number}).fetchone()
        old = self._db.execute("SELECT min(at) FROM history WHERE series = ?", (number,)).fetchone()[0]
        if first is None and old is None:
            return (), ()
        first = float("inf") if first is None else first
        begin = min(first, old if old is not None else first)
        width = max(1e-3, ((last if last is not None else begin) - begin) / max(1, points - 1))
        rows = self._db.execute(
            "SELECT avg(at), avg(value) FROM (SELECT at, value FROM recent WHERE series = :series UNION ALL"
            " SELECT at, value FROM history WHERE series = :series AND at < :first)"
            " GROUP BY cast((at - :begin) / :width AS INTEGER) ORDER BY 1",
            {"series": number, "first": first, "begin": begin, "width": width},
        ).fetchall()
        return tuple(row[0] for row in rows), tuple(row[1] for row in rows)

    def last(self, job: str, figure: str) -> float | None:
        """The newest value of a figure within the last two hours of its history."""
        number = self._series.get((job, figure))
        rows = "SELECT value FROM recent WHERE series = ? ORDER BY at DESC LIMIT 1"
        row = self._db.execute(rows, (number,)).fetchone()
        return row[0] if row else None

    def _number(self, job: str, figure: str) -> int | None:
        """The number of a figure's series; None for one more than a job may have."""
        known = self._series.get((job, figure))
        if known is None:
            if job and figure not in OURS and (len(figure) > NAME_LIMIT or self._own[job] >= KEPT_OF_A_JOB):
                self.refused.setdefault(job, figure)
                return None
            cursor = self._db.execute("INSERT INTO series (job, figure) VALUES (?, ?)", (job, figure))
            assert cursor.lastrowid is not None
            known = self._series[job, figure] = cursor.lastrowid
            self._own[job] += figure not in OURS
        return known
