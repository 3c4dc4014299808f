"""The stage that writes a tokenizer folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.artifacts import Result, Workspace, produce, read_manifest
from pipeline.config import BuildTokenizerConfig
from pipeline.errors import UserError
from pipeline.log import say

if TYPE_CHECKING:
    from datasets import Dataset

# What each kind of tokens reads of these settings; the others have to be left as they are.
READ = {
    "k-mers": {"k", "overlapping"},
    "codons": set(),
    "byte-pairs": {"corpus", "vocabulary_size", "longest"},
}
CODON = 3
K = {"dna": 6, "protein": 1}  # unless another is chosen


def _check(config: BuildTokenizerConfig) -> None:
    """Refuse settings that the tokenizer would not heed.

    A setting equal to its default counts as left out: a run hands every setting to its stages.
    """
    fields = BuildTokenizerConfig.model_fields
    for key in sorted(set.union(*READ.values()) - READ[config.units]):
        value = getattr(config, key)
        if value != fields[key].default and (key, value, config.units) != ("k", CODON, "codons"):
            units = next(name for name, keys in READ.items() if key in keys)
            raise UserError(
                f"{key}: {value}: only for units {units}, and units are {config.units}; leave it out"
            )
    if config.units == "byte-pairs" and config.alphabet == "dna" and config.corpus is None:
        raise UserError("corpus: byte pairs are learnt from one; pass a folder written by prepare")


def _sequences(rows: "Dataset") -> Iterator[str]:
    """Yield the sequences of a split one at a time: a row may be a chromosome."""
    for chunk in rows.data.column("sequence").chunks:
        for sequence in chunk:
            yield sequence.as_py()


def _learn(config: BuildTokenizerConfig, corpus: Path) -> dict:
    """Return the byte pairs of the corpus's training split, and where they come from."""
    from pipeline.sequences.corpus import load_corpus
    from pipeline.tokens.byte_pair_training import learn_byte_pairs

    splits, manifest = load_corpus(corpus, "corpus"), read_manifest(corpus)
    if manifest["config"]["alphabet"] != "dna":
        raise UserError(f"corpus: {corpus} holds proteins; byte pairs are for DNA")
    if "train" not in splits:
        raise UserError(f"corpus: {corpus} has no training split, which byte pairs are learnt from")
    rows = splits["train"]
    letters = sum(map(len, _sequences(rows)))
    sizes = {"vocabulary_size": config.vocabulary_size, "longest": config.longest}
    learnt = learn_byte_pairs(_sequences(rows), letters, **sizes, seed=config.seed)
    files = sorted(Path(path).name for path in manifest["config"]["input"])
    trained_on = {"files": files, "corpus": manifest["content"], "bases": learnt.bases, "seed": config.seed}
    return {"merges": learnt.merges, "trained_on": trained_on}


def run(config: BuildTokenizerConfig) -> Result:
    """Write a tokenizer that AutoTokenizer loads."""
    _check(config)

    def build(workspace: Workspace) -> None:
        from pipeline.tokens.vocabulary import build_tokenizer, save_as_json

        learnt = _learn(config, config.corpus) if config.corpus else {}
        tokenizer = build_tokenizer(
            config.alphabet,
            CODON if config.units == "codons" else config.k or K[config.alphabet],
            config.overlapping,
            config.max_length,
            units=config.units,
            letters=config.letters,
            **learnt,
        )
        save_as_json(tokenizer, workspace.path)
        workspace.counts["tokens"] = len(tokenizer)
        say(f"{config.output}: {len(tokenizer)} tokens")

    inputs = {"corpus": config.corpus} if config.corpus else {}
    return produce("build-tokenizer", config, inputs, build)


if __name__ == "__main__":
    from pipeline.cli import main

    main(stage="build-tokenizer")
