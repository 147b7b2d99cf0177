"""What may stand in the body of /generate, and what SGLang says of what may not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from pipeline.demo.decode import Sequence
from pipeline.demo.sampling import Sampling

SPOKEN: Final = frozenset({"input_ids", "text", "sampling_params", "rid", "stream"})
PARAMETERS: Final = frozenset(
    {"temperature", "top_p", "top_k", "max_new_tokens", "stop_token_ids", "ignore_eos", "sampling_seed"}
)
DEFAULT_NEW_TOKENS: Final = 128


class BadRequestError(ValueError):
    """Answered with 400; the text says what was found and what is allowed."""


def read_request(
    body: bytes,
    *,
    vocabulary: int,
    context_length: int,
    end_ids: frozenset[int],
    seed: int,
    encode: Callable[[str], list[int]] | None,
) -> Sequence:
    """The sequence that a body asks for. Raises BadRequestError."""
    try:
        request = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"The body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequestError(f"The body must be a JSON object, found {type(request).__name__}.")
    unknown = sorted(set(request) - SPOKEN)
    if unknown:
        raise BadRequestError(f"Not spoken by the reference server: {', '.join(unknown)}.")
    if request.get("stream"):
        raise BadRequestError("The reference server does not stream.")
    prompt = _prompt(request, vocabulary, encode)
    parameters = request.get("sampling_params") or {}
    if not isinstance(parameters, dict):
        raise BadRequestError("sampling_params must be an object.")
    unknown = sorted(set(parameters) - PARAMETERS)
    if unknown:
        raise BadRequestError(f"Unexpected sampling parameter: {', '.join(unknown)}.")
    sampling = Sampling(
        temperature=_number(parameters, "temperature", 1.0),
        top_p=_number(parameters, "top_p", 1.0),
        top_k=_whole(parameters, "top_k", -1),
    )
    if sampling.problem():
        raise BadRequestError(sampling.problem())
    new_tokens = _whole(parameters, "max_new_tokens", DEFAULT_NEW_TOKENS)
    if new_tokens < 1:
        raise BadRequestError(f"max_new_tokens must be at least 1, got {new_tokens}.")
    if len(prompt) >= context_length:
        raise BadRequestError(
            f"The input ({len(prompt)} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    if len(prompt) + new_tokens > context_length:
        raise BadRequestError(
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. You "
            f"requested a total of {len(prompt) + new_tokens} tokens: {len(prompt)} tokens from the input messages and "
            f"{new_tokens} tokens for the completion."
        )
    stop = parameters.get("stop_token_ids") or []
    if not _are_ids(stop, vocabulary):
        raise BadRequestError(f"stop_token_ids must be a list of token ids below {vocabulary}.")
    rid = request.get("rid") or uuid.uuid4().hex
    if not isinstance(rid, str):
        raise BadRequestError("rid must be a string.")
    return Sequence(
        rid=rid,
        prompt=prompt,
        max_new_tokens=new_tokens,
        stop_ids=frozenset(stop) | (frozenset() if parameters.get("ignore_eos") else end_ids),
        sampling=sampling,
        seed=_whole(parameters, "sampling_seed", seed),
    )


def _prompt(request: dict[str, Any], vocabulary: int, encode: Callable[[str], list[int]] | None) -> list[int]:
    ids, text = request.get("input_ids"), request.get("text")
    if (ids is None) == (text is None):
        raise BadRequestError("Either text or input_ids should be provided, and not both.")
    if text is not None:
        if not isinstance(text, str) or not text:
            raise BadRequestError("text must be a string that is not empty.")
        if encode is None:
            raise BadRequestError("This model has no tokenizer: send input_ids.")
        return encode(text)
    if not ids:
        raise BadRequestError("input_ids is empty.")
    if not _are_ids(ids, vocabulary):
        raise BadRequestError(f"The input_ids must be one list of token ids from 0 to {vocabulary - 1}.")
    assert isinstance(ids, list)
    return ids


def _are_ids(value: Any, vocabulary: int) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < vocabulary for item in value)


def _number(parameters: dict[str, Any], key: str, default: float) -> float:
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequestError(f"{key} must be a number, found {value!r}.")
    return float(value)


def _whole(parameters: dict[str, Any], key: str, default: int) -> int:
    value = parameters.get(key, default)
    if type(value) is not int:
        raise BadRequestError(f"{key} must be a whole number, found {value!r}.")
    return value
