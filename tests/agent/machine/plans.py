"""Plans of jobs that obey, at random, and random changes to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, Final

from pipeline.protocol import JobSpec, Need, Plan, Resources, RestartPolicy
from tests.agent.rig import RELEASE

UNIT: Final = 1 << 50
CAPACITY: Final = 3 * UNIT
"""Memory comes in units so large that what the machine has, and what else uses it, is nothing beside them."""

JOBS: Final = 5
TRAITS: Final = ("stubborn", "parent")
EDITS: Final = ("remove", "content", "inputs", "argv", "needs", "restart", "memory", "nothing")

Make = Callable[[list[JobSpec]], JobSpec]
"""Makes a new job that may need those given."""


def plan_of(specs: list[JobSpec]) -> Plan:
    """A plan that leaves ``CAPACITY`` to its jobs: what it keeps free is less than nothing."""
    return Plan("walk", RELEASE, tuple(specs), reserve_memory=-CAPACITY)


def new_spec(chance: Random, name: str, argv: tuple[str, ...], before: list[JobSpec]) -> JobSpec:
    """A job with up to two traits, which ``puppet`` knows."""
    return JobSpec(
        name,
        "demo",
        (*argv, *(trait for trait in TRAITS if chance.random() < 0.4)),
        needs=_needs(chance, before),
        resources=_memory(chance),
        restart=_policy(chance),
        service=chance.random() < 0.3,
        stop_grace_s=0.3,
        content_hash="c",
        inputs_hash="i",
        autostart=chance.random() < 0.8,
    )


def edited(chance: Random, specs: list[JobSpec], make: Make) -> list[JobSpec]:
    """The jobs of a plan after one change to it."""
    kind = chance.choice((*(["add"] * 3 if len(specs) < JOBS else []), *(EDITS if specs else [])))
    if kind == "add":
        return [*specs, make(specs)]
    at = chance.randrange(len(specs))
    spec = specs[at]
    if kind == "remove":
        return [_without(one, spec.name) for one in specs if one is not spec]
    changes: dict[str, Callable[[], dict[str, Any]]] = {
        "content": lambda: {"content_hash": spec.content_hash + "c"},
        "inputs": lambda: {"inputs_hash": spec.inputs_hash + "i"},
        "argv": lambda: {"argv": (*spec.argv, "again")},
        "needs": lambda: {"needs": _needs(chance, specs[:at])},
        "restart": lambda: {"restart": _policy(chance)},
        "memory": lambda: {"resources": _memory(chance)},
        "nothing": dict,
    }
    return [*specs[:at], replace(spec, **changes[kind]()), *specs[at + 1 :]]


def in_words(spec: JobSpec) -> str:
    """A job in a line."""
    needs = "".join(f", needs {need.job} {need.condition}" for need in spec.needs)
    marks = [mark for mark, holds in (("service", spec.service), ("by hand", not spec.autostart)) if holds]
    marks += [word for word in spec.argv if word in (*TRAITS, "again")]
    units = (spec.resources.memory or 0) // UNIT
    policy = f"{spec.restart.when} {spec.restart.limit} not {spec.restart.no_retry}"
    settings = f"{policy}, memory {units}, {spec.content_hash} {spec.inputs_hash}"
    return " ".join([spec.name, *marks, f"({settings}{needs})"])


def _policy(chance: Random) -> RestartPolicy:
    return RestartPolicy(
        chance.choice(("never", "on-failure", "always")),
        limit=chance.choice((1, 2)),
        backoff_s=0.05,
        backoff_max_s=0.1,
        no_retry=chance.choice(((3,), (3, 137))),
    )


def _memory(chance: Random) -> Resources:
    return Resources(chance.choice((None, None, UNIT, 2 * UNIT, 3 * UNIT)))


def _needs(chance: Random, before: list[JobSpec]) -> tuple[Need, ...]:
    needed = chance.sample(before, min(len(before), chance.choice((0, 0, 1, 2))))
    return tuple(Need(spec.name, "ready" if spec.service else "done") for spec in needed)


def _without(spec: JobSpec, gone: str) -> JobSpec:
    return replace(spec, needs=tuple(need for need in spec.needs if need.job != gone))
