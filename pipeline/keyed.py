"""Random numbers that are a function of integer keys alone, one at a time or for many keys at once.

What is drawn for a window then depends neither on the batch nor on the process it is drawn in.
"""

import hashlib

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)


def mix(words: np.ndarray) -> np.ndarray:
    """Scramble uint64 words one to one (SplitMix64, Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    words = words + _STEP
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keys(*parts: int | np.ndarray) -> np.ndarray:
    """Return uint64 keys (N,), one for each row of ``parts``: integers or (N,), not negative."""
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(part, dtype=np.uint64)) for part in parts))
    key_N = np.zeros(columns[0].shape, np.uint64)
    for column in columns:
        key_N = mix(key_N ^ mix(column))
    return key_N


def words(key_N: np.ndarray, number: int | np.ndarray | np.unsignedinteger) -> np.ndarray:
    """Return of each key the random uint64 words of these numbers, which broadcast against the keys."""
    return mix(key_N + np.asarray(number, dtype=np.uint64) * _STEP)


def uniforms(word_N: np.ndarray) -> np.ndarray:
    """Return words as numbers in [0, 1)."""
    return (word_N >> np.uint64(11)) * 2.0**-53


def integers(word_N: np.ndarray, below: int | np.ndarray) -> np.ndarray:
    """Return words as integers from 0 to ``below`` - 1 (below 2**32), by their upper halves alone."""
    return ((word_N >> np.uint64(32)) * np.asarray(below, dtype=np.uint64) >> np.uint64(32)).astype(np.int64)


def generator(*key: int) -> np.random.Generator:
    """Return a random generator that is a function of the integers in ``key`` alone."""
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))
