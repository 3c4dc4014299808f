"""Overlapping k-mers, the one scheme that a tokenizer.json does not express at a usable speed for k > 4.

This file is copied into the checkpoints that use it: it imports only from transformers.
"""

import json
from pathlib import Path

from transformers.tokenization_python import PythonBackend

VOCAB_FILES_NAMES = {"vocab_file": "vocab.json"}
SPECIALS = ("<pad>", "<unk>", "<cls>", "<eos>", "<mask>")
FOLDED = str.maketrans("acgtnUuRYSWKMBDHVryswkmbdhv", "ACGTNTT" + "N" * 20)


class KmerTokenizer(PythonBackend):
    """Slide a window of k bases along DNA, one token for every base.

    Lower case is folded, U reads as T and ambiguity codes as N. Where the window holds an N or runs over the
    end, the token is the single base it begins with; at the end such tokens appear only if the last whole
    window could not be read. So the sequence is the first letters of all tokens and the rest of the last one.
    """

    vocab_files_names = VOCAB_FILES_NAMES
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, vocab_file=None, k=6, vocab=None, **kwargs):
        if vocab is None:
            assert vocab_file, "a tokenizer needs vocab_file or vocab"
            vocab = json.loads(Path(vocab_file).read_text())
        self._vocab = vocab
        self._tokens = {i: token for token, i in self._vocab.items()}
        self.k = k
        for token in SPECIALS:
            kwargs.setdefault(f"{token.strip('<>')}_token", token)
        super().__init__(k=k, **kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, specials included."""
        return len(self._vocab)

    def get_vocab(self) -> dict[str, int]:
        """Return the table from token to id."""
        return {**self._vocab, **self.added_tokens_encoder}

    def _tokenize(self, text, **_):
        text = text.strip().translate(FOLDED)
        k, whole = self.k, len(text) - self.k + 1
        windows = [text[i : i + k] for i in range(len(text))]
        tokens = [w if w in self._vocab and len(w) == k else w[0] for w in windows]
        return tokens[:whole] if whole > 0 and len(tokens[whole - 1]) == k else tokens

    def _convert_token_to_id(self, token):
        return self._vocab.get(token, self._vocab["<unk>"])

    def _convert_id_to_token(self, index):
        return self._tokens.get(index, "<unk>")

    def convert_tokens_to_string(self, tokens):
        """Undo the sliding window."""
        return "".join(token if token in SPECIALS else token[0] for token in tokens[:-1]) + "".join(
            tokens[-1:]
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
