"""Overlapping k-mers at a usable speed: what the rules of a tokenizer.json do for small k, in Python.

This file is copied into the checkpoints that use it: it imports only from transformers.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

from transformers.tokenization_python import PythonBackend

VOCAB_FILES_NAMES = {"vocab_file": "vocab.json"}
SPECIALS = ("<pad>", "<unk>", "<cls>", "<eos>", "<mask>")
LETTERS, AMBIGUOUS = "ACGTN", "RYSWKMBDHV"
SINGLE = {*LETTERS, "<mask>"}
HIDDEN, STRANGER = "\ue004", "?"
BLANK = r" \t\f\v"


def fold(uracil: str = "t", ambiguous: str = "n", **_: str) -> dict[int, str]:
    """Return the table of letters that are read as another one, under a policy for U and ambiguity codes."""
    table = {letter.lower(): letter for letter in LETTERS}
    table |= dict.fromkeys("Uu", "T") if uracil == "t" else {}
    table |= dict.fromkeys(AMBIGUOUS + AMBIGUOUS.lower(), "N") if ambiguous == "n" else {}
    return str.maketrans(table)


class KmerTokenizer(PythonBackend):
    """Slide a window of k bases along DNA, one token for every base.

    Lower case is folded, U reads as T and ambiguity codes as N, unless ``letters`` says otherwise. Where the
    window holds anything but bases or runs over the end, the token is the single letter it begins with; at
    the end such tokens appear only if the last whole window could not be read. So the sequence is the first
    letters of all tokens and the rest of the last one.

    In the text, ``<mask>`` is one hidden base: every token that touches it is ``<mask>``. ``<unk>`` is an
    unknown letter; other special tokens are dropped, as the tokenizer adds its own, unless they are the
    whole text. Lines are joined; words are, if they are k-mers that each overlap the next by k - 1 letters.

    Raises:
        ValueError: on words that are something else: read as one sequence, they would be a wrong one.
    """

    vocab_files_names = VOCAB_FILES_NAMES
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file=None, k=6, vocab=None, letters=None, **kwargs):
        if vocab is None:
            assert vocab_file, "a tokenizer needs vocab_file or vocab"
            vocab = json.loads(Path(vocab_file).read_text())
        self._vocab = vocab
        self._tokens = {i: token for token, i in self._vocab.items()}
        self._kmers = {token for token in vocab if len(token) == k and token not in SPECIALS}
        self._folded = fold(**(letters or {}))
        self.k = k
        for token in SPECIALS:
            kwargs.setdefault(f"{token.strip('<>')}_token", token)
        super().__init__(k=k, letters=letters, **kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, specials included."""
        return len(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        """Return the table from token to id."""
        return {**self._vocab, **self.added_tokens_encoder}

    def _update_trie(self, unique_no_split_tokens=None):
        """Leave special tokens in the text to ``_tokenize``; it is for tokens that somebody adds."""
        super()._update_trie(unique_no_split_tokens)
        added = [token for token in self.tokens_trie._tokens if token not in SPECIALS]
        self.tokens_trie = type(self.tokens_trie)(added)

    def _tokenize(self, text, **_):
        if text in SPECIALS:
            return [text]
        text = self._read(text)
        tokens = self._slide(text.replace(HIDDEN, "A"))
        if HIDDEN not in text:
            return tokens
        spans = [self.k if token in self._kmers else 1 for token in tokens]
        return [
            "<mask>" if HIDDEN in text[i : i + span] else token
            for i, (token, span) in enumerate(zip(tokens, spans, strict=True))
        ]

    def _read(self, text):
        """Return the letters of a text, hidden bases among them."""
        text = text.replace(HIDDEN, STRANGER).replace("<mask>", HIDDEN).replace("<unk>", STRANGER)
        text = re.sub("<(?:cls|eos|pad)>", "", text).translate(self._folded)
        text = re.sub(rf"[{BLANK}]*[\r\n][{BLANK}\r\n]*", "", text).strip(" \t\f\v")
        first, *others = re.split(f"[{BLANK}]+", text)
        return self._join(first, others) if others else first

    def _join(self, first, others):
        word = re.compile(f"[{LETTERS}]{{{self.k}}}")
        for one, other in pairwise([first, *others]):
            if not (word.fullmatch(one) and word.fullmatch(other) and one[1:] == other[:-1]):
                raise ValueError(
                    f"words {one[:20]!r} and {other[:20]!r} are no {self.k}-mers that overlap by "
                    f"{self.k - 1} letters; pass the sequence without blanks"
                )
        return first + "".join(word[-1] for word in others)

    def _slide(self, text):
        k, whole = self.k, len(text) - self.k + 1
        windows = [text[i : i + k] for i in range(len(text))]
        tokens = [w if w in self._kmers else w[0] if w[0] in LETTERS else "<unk>" for w in windows]
        return tokens[:whole] if whole > 0 and tokens[whole - 1] in self._kmers else tokens

    def _convert_token_to_id(self, token):
        return self._vocab.get(token, self._vocab["<unk>"])

    def _convert_id_to_token(self, index):
        return self._tokens.get(index, "<unk>")

    def convert_tokens_to_string(self, tokens):
        """Undo the sliding window: of a k-mer, drop all but the first base if other bases follow."""
        return "".join(
            token[0] if token in self._kmers and (after in self._kmers or after in SINGLE) else token
            for token, after in pairwise([*tokens, ""])
        )

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        """Wrap as ``<cls> a <eos>``, or ``<cls> a <eos> b <eos>`` for a pair."""
        second = [] if token_ids_1 is None else [*token_ids_1, self.eos_token_id]
        return [self.cls_token_id, *token_ids_0, self.eos_token_id, *second]

    def get_special_tokens_mask(self, token_ids_0, token_ids_1=None, already_has_special_tokens=False):
        """Mark special tokens with 1, so that a masked-LM collator leaves them alone."""
        if not already_has_special_tokens:
            token_ids_0 = self.build_inputs_with_special_tokens(token_ids_0, token_ids_1)
        specials = set(self.all_special_ids)
        return [int(i in specials) for i in token_ids_0]

    def save_vocabulary(self, save_directory, filename_prefix=None):
        """Write the vocabulary next to the tokenizer's config."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory) / f"{prefix}vocab.json"
        path.write_text(json.dumps(self._vocab, indent=0))
        return (str(path),)
