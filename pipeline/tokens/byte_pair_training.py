"""Learn byte pairs from DNA (Sennrich et al. 2016, arXiv:1508.07909).

A genome is one word without blanks, on which training takes for ever. So it is cut: at every letter that is
no base, then every 256 bases. Of these chunks as many are used as hold about 4 million bases, chosen by a
hash of their letters, so that the pairs learnt depend neither on the order of the records nor on their names.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.log import say
from pipeline.tokens.vocabulary import DNA_LETTERS, DNA_SPECIALS

CHUNK = 256
BASES = 4_000_000
_HASHES = 1 << 64


@dataclass(frozen=True)
class BytePairs:
    """What was learnt: ``merges``, in order, from so many ``bases``."""

    merges: list[tuple[str, str]]
    bases: int


def cut_dna(sequences: Iterable[str]) -> Iterator[str]:
    """Yield stretches of bases, cut every CHUNK letters from where each begins; lower case is folded."""
    for sequence in sequences:
        for stretch in re.finditer("[ACGTacgt]+", sequence):
            for start in range(stretch.start(), stretch.end(), CHUNK):
                yield sequence[start : min(start + CHUNK, stretch.end())].upper()


def choose(chunks: Iterable[str], share: float, seed: int) -> Iterator[str]:
    """Yield about this share of the chunks, whatever their order; equal chunks are chosen together."""
    key = seed.to_bytes(8, "little")
    for chunk in chunks:
        digest = hashlib.blake2b(chunk.encode(), digest_size=8, key=key).digest()
        if share >= 1 or int.from_bytes(digest) < share * _HASHES:
            yield chunk


def learn_byte_pairs(
    sequences: Iterable[str], letters: int, *, vocabulary_size: int, longest: int, seed: int
) -> BytePairs:
    """Learn a vocabulary of byte pairs.

    Args:
        sequences: DNA; whatever is no base separates what is learnt from.
        letters: how many letters they have in all.
        vocabulary_size: tokens in all, specials and single letters included.
        longest: letters in the longest token.
        seed: of the choice of chunks, where there is more than BASES to learn from.

    Raises:
        UserError: the sequences hold too few pairs for that vocabulary.
    """
    from tokenizers import Tokenizer, models, trainers

    share = min(1.0, BASES / max(letters, 1))
    chunks = list(choose(cut_dna(sequences), share, seed))
    bases = sum(map(len, chunks))
    say(f"learning {vocabulary_size} tokens from {bases:,} of {letters:,} letters, about {bases / 1e6:.0f} s")
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(DNA_SPECIALS),
        initial_alphabet=list(DNA_LETTERS),
        max_token_length=longest + 1,  # the trainer stays below it
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(chunks, trainer)
    size = tokenizer.get_vocab_size()
    if size < vocabulary_size:
        raise UserError(
            f"vocabulary_size: {vocabulary_size}: the corpus has pieces for {size} tokens of "
            f"up to {longest} letters; ask for fewer, or pass a larger corpus"
        )
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return BytePairs([(left, right) for left, right in merges], bases)
