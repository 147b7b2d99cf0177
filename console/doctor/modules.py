"""What has to be installed on the host for the agent and for each stage, in versions as pyproject.toml names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from console.config.schema import Config
from console.doctor.findings import Finding


@dataclass(frozen=True)
class Module:
    """A module, its distribution's name and the lowest version that will do. ``bad`` ones are known not to."""

    name: str
    distribution: str
    least: str
    bad: tuple[str, ...] = ()
    needed: bool = True  # False: something is missing without it, but nothing fails


# Kimi's special ids are shifted by these versions.
TRANSFORMERS: Final = Module("transformers", "transformers", "4.57", ("5.4.0", "5.5.0", "5.5.1", "5.5.2", "5.5.3"))
NUMPY: Final = Module("numpy", "numpy", "1.26")
JINJA: Final = Module("jinja2", "jinja2", "3.1")
MSGSPEC: Final = Module("msgspec", "msgspec", "0.19")
HTTPX: Final = Module("httpx", "httpx", "0.28")
SERVING: Final = (Module("starlette", "starlette", "0.40"), Module("uvicorn", "uvicorn", "0.30"))
NVML: Final = Module("pynvml", "nvidia-ml-py", "12", needed=False)

AGENT: Final = (Module("psutil", "psutil", "6"), HTTPX, MSGSPEC, *SERVING, NVML)
STAGES: Final = {
    "prep": (Module("datasets", "datasets", "4"), TRANSFORMERS, JINJA),
    "dedup": (NUMPY,),
    "generate": (Module("aiohttp", "aiohttp", "3.14.2"), Module("httpx_aiohttp", "httpx-aiohttp", "0.1.8")),
    "merge": (TRANSFORMERS, JINJA),
}
ENGINES: Final = {
    "sglang": (Module("sglang", "sglang", "0.5.16"),),
    "reference": (Module("torch", "torch", "2.9"), TRANSFORMERS, *SERVING),
}
KIMI_TOKENIZER: Final = Module("tiktoken", "tiktoken", "0", needed=False)


def groups(config: Config) -> dict[str, tuple[Module, ...]]:
    """By who needs them, all but the model server's."""
    found = {"agent": AGENT, **STAGES}
    if config.target.family == "kimi_k25" and config.target.trust_remote_code:
        found["prep"] = (*STAGES["prep"], KIMI_TOKENIZER)
    return found


def judge(who: str, modules: tuple[Module, ...], found: dict[str, str], python: str) -> Finding:
    """One line on the modules of the agent or of a stage. ``found`` are versions by module, "?" where untold."""
    topic = f"modules, {who}"
    missing = [module for module in modules if module.name not in found]
    bad = [module for module in modules if found.get(module.name) in module.bad]
    old = [module for module in modules if module.name in found and _below(found[module.name], module.least)]
    if not missing and not bad and not old:
        return Finding("ok", topic, ", ".join(f"{module.distribution} {found[module.name]}" for module in modules))
    words = [f"{module.distribution} is missing" for module in missing]
    words += [f"{module.distribution} {found[module.name]} is known to be broken" for module in bad]
    words += [f"{module.distribution} {found[module.name]} is older than {module.least}" for module in old]
    wanted = " ".join(f"'{module.distribution}>={module.least}'" for module in dict.fromkeys((*missing, *bad, *old)))
    wrong = any(module.needed for module in (*missing, *bad))
    return Finding("wrong" if wrong else "warning", topic, "; ".join(words), f"{python} -m pip install {wanted}")


def _below(version: str, least: str) -> bool:
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    return bool(numbers) and numbers < [int(part) for part in least.split(".")]
