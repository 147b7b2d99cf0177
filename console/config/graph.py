"""Which jobs a config makes and what each waits for: the part of the plan that checks need as well."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

from console.config.schema import Config
from pipeline.protocol import Need

BASELINE: Final = "serve:baseline"
DEDUP_JOB: Final = "dedup"
ROUTER: Final = "serve:router"
SERVER_NAMES: Final = ("baseline", "router")
"""Servers that ``generate.servers`` may name."""


def job_names(config: Config) -> tuple[str, ...]:
    """The plan's jobs in the order in which work flows."""
    server = (*((BASELINE,) if uses_baseline(config) else ()), *((ROUTER,) if uses_router(config) else ()))
    return (*(f"prep:{name}" for name in config.datasets), DEDUP_JOB, *server, "generate", "merge")


def uses_baseline(config: Config) -> bool:
    """False where every server that answers runs elsewhere."""
    workers = config.serve.router.workers if config.serve.router is not None and uses_router(config) else ()
    return "baseline" in (*config.generate.servers, *workers)


def uses_router(config: Config) -> bool:
    """Whether a router stands before the servers."""
    return config.serve.router is not None and "router" in config.generate.servers


def needs_of(config: Config) -> dict[str, tuple[Need, ...]]:
    """Every job's needs. A pattern of the config that matches no job adds none; ``check`` reports it."""
    names = job_names(config)
    needs: dict[str, tuple[Need, ...]] = {}
    for name, dataset in config.datasets.items():
        needs[f"prep:{name}"] = _done(_matches(dataset.needs, names, f"prep:{name}"))
    # It waits for all preps, so what needs it needs none of them by name.
    needs[DEDUP_JOB] = _done([f"prep:{name}" for name in config.datasets])
    ready: tuple[Need, ...] = ()
    if uses_baseline(config):
        needs[BASELINE] = _done(_matches(config.serve.baseline.needs, names, BASELINE))
        ready = (Need(BASELINE, "ready"),)
    if uses_router(config):
        # It is there when one of its servers is, so it waits for none of them.
        needs[ROUTER] = ()
        ready = (Need(ROUTER, "ready"),)
    needs["generate"] = (Need(DEDUP_JOB), *ready)
    needs["merge"] = (Need(DEDUP_JOB), Need("generate"))
    return needs


def _done(names: list[str]) -> tuple[Need, ...]:
    return tuple(Need(name) for name in names)


def _matches(patterns: tuple[str, ...], names: tuple[str, ...], own: str) -> list[str]:
    """Jobs that any pattern names, each once. A pattern with a wildcard never means the job itself."""
    found: dict[str, None] = {}
    for pattern in patterns:
        for name in matches(pattern, names):
            if name != own or name == pattern:
                found[name] = None
    return list(found)


def matches(pattern: str, names: tuple[str, ...]) -> list[str]:
    """The jobs that one pattern names: ``prep:B1``, ``prep:*``."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def find_cycle(needs: Mapping[str, tuple[Need, ...]]) -> tuple[str, ...]:
    """Jobs that wait for each other, first one repeated at the end; () where there are none."""
    finished: set[str] = set()
    for start in needs:
        trail: list[str] = []
        cycle = _walk(start, needs, trail, finished)
        if cycle:
            return cycle
    return ()


def _walk(name: str, needs: Mapping[str, tuple[Need, ...]], trail: list[str], finished: set[str]) -> tuple[str, ...]:
    if name in trail:
        return (*trail[trail.index(name) :], name)
    if name in finished:
        return ()
    trail.append(name)
    for need in needs.get(name, ()):
        cycle = _walk(need.job, needs, trail, finished)
        if cycle:
            return cycle
    trail.pop()
    finished.add(name)
    return ()
