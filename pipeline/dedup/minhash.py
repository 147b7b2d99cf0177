"""How alike two texts are: MinHash signatures of their word shingles, and which pairs are worth comparing.

The share of equal places in two signatures estimates the Jaccard similarity of the texts' sets of shingles (Broder,
1997), with a standard error of at most 0.044. Signatures are cut into bands; only texts that agree in a whole band are
compared (locality-sensitive hashing). Everything depends on the text alone: the same on every machine and run.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

PLACES: Final = 128
RECALL: Final = 0.99
"""The share of pairs right at the threshold that have to meet in a band; of more similar ones it is higher."""

BLOCK: Final = 256  # shingles hashed at once: what fits a core's cache

# A word each for scripts that put no spaces between theirs. Operators are words: 3 + 4 is not 3 * 4.
_WORD: Final = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[+\-*/=<>!^%&|~]+"
)
_PRIME: Final = np.uint64(0x100000001B3)
_ODD: Final = np.random.default_rng(1997).integers(0, 2**64, PLACES, dtype=np.uint64) | np.uint64(1)

Hashes = NDArray[np.uint64]
Signatures = NDArray[np.uint32]


def shingles(text: str, size: int) -> Hashes:
    """Hashes of all runs of ``size`` words, or of all words where there are fewer.

    Case and marks do not count, operators do.
    """
    words = _WORD.findall(text.lower()) or [text.strip()]
    hashes = np.fromiter(map(zlib.crc32, map(str.encode, words)), np.uint64, len(words))
    runs = max(1, len(words) - size + 1)
    found = np.zeros(runs, np.uint64)
    for offset in range(min(size, len(words))):
        found = found * _PRIME + hashes[offset : offset + runs] + np.uint64(1)
    return mixed(found)


def signature(found: Hashes) -> Signatures:
    """The ``PLACES`` smallest values that as many hash functions give the shingles, uint32."""
    least = np.full(PLACES, 2**64 - 1, np.uint64)
    for start in range(0, len(found), BLOCK):
        block = found[start : start + BLOCK, None] * _ODD
        np.minimum(least, block.min(axis=0), out=least)
    return (least >> np.uint64(32)).astype(np.uint32)


def mixed(values: Hashes) -> Hashes:
    """Values with every bit spread over all of them (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def band_width(threshold: float) -> int:
    """Places a band: the most with which pairs at the threshold still meet in one of the bands, to ``RECALL``."""
    widths = range(PLACES, 1, -1)
    return next((w for w in widths if 1 - (1 - threshold**w) ** (PLACES // w) >= RECALL), 1)


def buckets(signatures: Signatures, threshold: float) -> NDArray[np.int32]:
    """For each text and band, the number of the bucket it shares with others; -1 where it is alone in it.

    ``signatures`` is (texts, PLACES); the result (texts, bands). A bucket's number is unique over all bands.
    """
    width = band_width(threshold)
    bands = PLACES // width
    found = np.full((len(signatures), bands), -1, np.int32)
    following = 0
    for band in range(bands):
        value = np.zeros(len(signatures), np.uint64)
        for place in range(band * width, (band + 1) * width):
            value = mixed(value + signatures[:, place])
        _, inverse, counts = np.unique(value, return_inverse=True, return_counts=True)
        shared = counts > 1
        number = np.where(shared, np.cumsum(shared) - 1 + following, -1).astype(np.int32)
        found[:, band] = number[inverse]
        following += int(shared.sum())
    return found


def similarity(one: Signatures, others: Signatures) -> NDArray[np.float64]:
    """Estimated Jaccard similarity of one text, (PLACES,), to each of the others, (n, PLACES)."""
    return np.asarray((others == one).mean(axis=1), np.float64)
