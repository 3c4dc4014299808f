"""Tokenizers as folders of JSON: what each letter or k-mer is called and numbered."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts import read_keys
from pipeline.config import Alphabet, LettersConfig
from pipeline.errors import UserError
from pipeline.resources import resource
from pipeline.sequences.alphabets import DEFAULTS

DNA_SPECIALS = ("<pad>", "<unk>", "<cls>", "<eos>", "<mask>")
DNA_LETTERS = "ACGTN"
# Numbered as ESM-2 numbers them (Lin et al. 2023, doi:10.1126/science.ade2574), so that its weights fit.
PROTEIN_TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>")
RESIDUES = "LAGVSERTIDPKQNFYMHWC"
# Overlapping k-mers of up to this many letters are rules of a tokenizer.json; Python is faster from then on.
RULES_UP_TO = 4
CONFIG = "tokenizer_config.json"
FILES = ("tokenizer.json", CONFIG, "vocab.json")
Units = Literal["k-mers", "codons", "byte-pairs"]


def kmer_vocabulary(k: int) -> dict[str, int]:
    """Return token -> id: specials, single letters, then all k-mers in alphabetical order."""
    kmers = ("".join(letters) for letters in itertools.product("ACGT", repeat=k)) if k > 1 else ()
    return {token: i for i, token in enumerate((*DNA_SPECIALS, *DNA_LETTERS, *kmers))}


def byte_pair_vocabulary(merges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return token -> id: specials, single letters, then what each merge makes, in the order learnt."""
    pieces = dict.fromkeys(left + right for left, right in merges)
    return {token: i for i, token in enumerate((*DNA_SPECIALS, *DNA_LETTERS, *pieces))}


def build_tokenizer(
    alphabet: Alphabet,
    k: int,
    overlapping: bool,
    max_length: int,
    *,
    units: Units = "k-mers",
    letters: LettersConfig = DEFAULTS,
    merges: Sequence[tuple[str, str]] = (),
    trained_on: dict[str, Any] | None = None,
):
    """Return a Hugging Face tokenizer, which knows what the fast encoder needs to know of it.

    Args:
        alphabet: dna or protein.
        k: letters in a token, 1 to 8; 1 for proteins, 3 for codons; not read for byte pairs.
        overlapping: one token for every base (k > 1) instead of one for every k bases.
        max_length: context in tokens, specials included.
        units: k-mers, codons in frame from the first base, or byte pairs.
        letters: what becomes of letters that are not read as they are.
        merges: byte pairs, in the order learnt.
        trained_on: byte pairs: where they were learnt, for the tokenizer's config.

    Raises:
        UserError: proteins with tokens of several residues.
    """
    if alphabet == "protein":
        _check_residues(k, overlapping, units)
    facts = {
        "alphabet": alphabet,
        "k": None if units == "byte-pairs" else k,
        "overlapping": overlapping,
        "units": units,
        "letters": letters.model_dump(),
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    if overlapping and k > RULES_UP_TO:
        from pipeline.model import KmerTokenizer

        return KmerTokenizer(vocab=kmer_vocabulary(k), **facts)
    if trained_on is not None:
        facts["trained_on"] = trained_on
    return _from_rules(_model(alphabet, k, units, letters, merges), facts)


def _check_residues(k: int, overlapping: bool, units: Units) -> None:
    residues = "protein tokenizers have one token for each residue"
    if units != "k-mers":
        raise UserError(f"units: {units}: {residues}; leave units out, or set alphabet to dna")
    if k > 1:
        raise UserError(f"k: {k}: {residues}; leave k out")
    if overlapping:
        raise UserError(f"overlapping: {overlapping}: {residues}; leave overlapping out")


def _model(alphabet: Alphabet, k: int, units: Units, letters: LettersConfig, merges: Sequence):
    from tokenizers import models

    from pipeline.tokens.rules import unknown_token

    if units == "byte-pairs":
        return models.BPE(byte_pair_vocabulary(merges), list(merges), unk_token="<unk>")
    names = {token: i for i, token in enumerate(PROTEIN_TOKENS)}
    vocabulary = names if alphabet == "protein" else kmer_vocabulary(k)
    return models.WordLevel(vocabulary, unk_token=unknown_token(alphabet, letters))


def _from_rules(model: Any, facts: dict[str, Any]):
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    from pipeline.tokens import rules

    k, overlapping = facts["k"], facts["overlapping"]
    tokenizer = Tokenizer(model)
    width = k if overlapping else 1
    tokenizer.normalizer = rules.reading(facts["alphabet"], LettersConfig(**facts["letters"]), width)
    tokenizer.pre_tokenizer = rules.cut(facts["units"], k, overlapping)
    tokenizer.decoder = rules.joining(width)
    tokenizer.add_special_tokens(rules.added_tokens())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>",
        pair="<cls> $A <eos> $B <eos>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<cls>", "<eos>")],
    )
    names = {f"{name}_token": f"<{name}>" for name in rules.SPECIALS}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **names, **facts)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into a checkpoint: its source if it has one of its own, and the facts it carries."""
    tokenizer.save_pretrained(folder)


def save_as_json(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer folder, which is JSON alone: what has source of its own needs StrandLM there."""
    tokenizer.save_pretrained(folder)
    for source in folder.glob("*.py"):
        source.unlink()
    _forget_source(folder)


def _forget_source(folder: Path) -> None:
    """Take out of a tokenizer's config where its source lies, as it does not lie in the folder."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if config.pop("auto_map", None):
        path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def retarget(source: Path, target: Path, letters: LettersConfig) -> dict[str, tuple[str, str]]:
    """Write the tokenizer of a folder (or checkpoint) once more, as JSON, with another policy for letters.

    Where the policy is the same, the files are copied as they are.

    Args:
        source: folder of a tokenizer of ours.
        target: folder to write, which may exist.
        letters: the policy of the corpus that the tokenizer is for.

    Returns:
        For each setting of the policy that differs, what it was and what it is now.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    _forget_source(target)
    facts, policy = json.loads((source / "tokenizer_config.json").read_text()), letters.model_dump()
    changed = {k: (facts["letters"][k], new) for k, new in policy.items() if facts["letters"][k] != new}
    if changed:
        tokenizer = load_tokenizer(source, letters=policy)
        if tokenizer.is_fast:
            _change_rules(tokenizer, facts, letters)
        save_as_json(tokenizer, target)
    return changed


def _change_rules(tokenizer: Any, facts: dict[str, Any], letters: LettersConfig) -> None:
    from pipeline.tokens import rules

    backend, width = tokenizer.backend_tokenizer, facts["k"] if facts["overlapping"] else 1
    backend.normalizer = rules.reading(facts["alphabet"], letters, width)
    if facts["alphabet"] == "protein":
        backend.model.unk_token = rules.unknown_token("protein", letters)


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


def load_tokenizer(folder: Path, **changes: Any):
    """Return the Hugging Face tokenizer of a folder (or checkpoint) of ours, some facts changed.

    Raises:
        UserError: the folder holds none, or a file of it is no JSON.
    """
    from transformers import AutoTokenizer

    import pipeline.model  # noqa: F401  registers our classes

    for name in FILES:
        if name == CONFIG or (folder / name).is_file():
            read_keys(folder / name)
    return AutoTokenizer.from_pretrained(folder.absolute(), trust_remote_code=False, **changes)
