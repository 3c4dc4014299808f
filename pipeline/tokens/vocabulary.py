"""Tokenizers as folders of JSON: what each letter or k-mer is called and numbered."""

import itertools
import json
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.resources import resource

DNA_SPECIALS = ("<pad>", "<unk>", "<cls>", "<eos>", "<mask>")
DNA_LETTERS = "ACGTN"
# Numbered as ESM-2 numbers them (Lin et al. 2023, doi:10.1126/science.ade2574), so that its weights fit.
PROTEIN_TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
RESIDUES = "LAGVSERTIDPKQNFYMHWC"


def kmer_vocabulary(k: int) -> dict[str, int]:
    """Return token -> id: specials, single letters, then all k-mers in alphabetical order."""
    kmers = ("".join(letters) for letters in itertools.product("ACGT", repeat=k)) if k > 1 else ()
    return {token: i for i, token in enumerate((*DNA_SPECIALS, *DNA_LETTERS, *kmers))}


def _fast(vocabulary: dict[str, int], split: str, normalizers: list, max_length: int):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers import normalizers as norm
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = norm.Sequence(normalizers)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(split), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>",
        pair="<cls> $A <eos> $B <eos>",
        special_tokens=[(token, vocabulary[token]) for token in ("<cls>", "<eos>")],
    )
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "unk", "cls", "eos", "mask")}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **names,
    )


def _fold(letters: str) -> list:
    from tokenizers import normalizers as norm

    return [norm.Replace(letter.lower(), letter) for letter in letters]


def build_tokenizer(alphabet: str, k: int, overlapping: bool, max_length: int):
    """Return a Hugging Face tokenizer.

    Args:
        alphabet: dna or protein.
        k: letters in a token, 1 to 8; 1 for proteins.
        overlapping: one token for every base (k > 1) instead of one for every k bases.
        max_length: context in tokens, specials included.
    """
    from tokenizers import Regex
    from tokenizers import normalizers as norm

    if alphabet == "protein":
        if k > 1 or overlapping:
            raise UserError(f"k: {k}: protein tokenizers have one token for each residue; set k to 1")
        vocabulary = {token: i for i, token in enumerate(PROTEIN_TOKENS)}
        rules = [*_fold("LAGVSERTIDPKQNFYMHWCXBUZOJ"), norm.Replace("J", "X"), norm.Replace(" ", "")]
        return _fast(vocabulary, ".", rules, max_length)
    if overlapping and k > 1:
        from pipeline.model import KmerTokenizer

        return KmerTokenizer(vocab=kmer_vocabulary(k), k=k, model_max_length=max_length)
    rules = [
        *_fold(DNA_LETTERS),
        norm.Replace(Regex("[Uu]"), "T"),
        norm.Replace(Regex("[RYSWKMBDHVryswkmbdhv]"), "N"),
        norm.Replace(" ", ""),
    ]
    split = f"[ACGT]{{{k}}}|." if k > 1 else "."
    return _fast(kmer_vocabulary(k), split, rules, max_length)


def save_tokenizer(tokenizer: Any, folder: Path, alphabet: str, k: int, overlapping: bool) -> None:
    """Write a tokenizer, its source if it has one of its own, and the facts that the fast encoder needs."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"alphabet": alphabet, "k": k, "overlapping": overlapping}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def find_tokenizer(name: str) -> Path:
    """Return the folder of a tokenizer, given a path or the name of one that comes with strandlm.

    Raises:
        UserError: there is none of that name.
    """
    shipped = resource("tokenizers")
    for folder in (Path(name), shipped / name):
        if (folder / "tokenizer_config.json").is_file():
            return folder.absolute()
    known = ", ".join(sorted(p.name for p in shipped.iterdir() if p.is_dir()))
    raise UserError(f"tokenizer: {name!r} is neither a tokenizer folder nor one of {known}")


def load_tokenizer(folder: Path):
    """Return the Hugging Face tokenizer of a folder (or checkpoint) of ours."""
    from transformers import AutoTokenizer

    import pipeline.model  # noqa: F401  registers our classes

    return AutoTokenizer.from_pretrained(folder.absolute())
