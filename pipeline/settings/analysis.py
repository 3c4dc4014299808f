"""The schemas of the stages that ask a model: about sequences, genomes, motifs, contacts, other models."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings.sections import Positive, ScanConfig, StageConfig


class EvaluateConfig(StageConfig):
    """Bits per hidden base (or residue) of a checkpoint on tokens, beside the two-sided count model."""

    checkpoint: Path
    """folder written by pretrain"""
    data: list[Path]
    """folders written by tokenize, with the checkpoint's tokenizer or another of the same alphabet"""
    split: Literal["train", "validation", "test"] = "test"
    """split that is scored; the count model learns from train"""
    by: str | None = None
    """also report each value of this column: id (record or chromosome), or one kept from the corpus"""
    window: Positive | None = None
    """letters shown at once (default: the model's context)"""
    letters: Positive = 100_000
    """letters of each data set scored, at most"""
    count_model: bool = True
    """score the two-sided count model on the same hidden runs, as the baseline"""


class CompareConfig(StageConfig):
    """Lay finished pretraining runs side by side: settings that differ, curves, bits, paired differences."""

    runs: list[Path] = []
    """folders written by pretrain, two or more"""


class PredictConfig(StageConfig):
    """Score sequences with a classifier, or scan a genome for start sites: TSV, BED, bedGraph and bigWig."""

    checkpoint: Path
    """classifier written by finetune"""
    input: list[Path] = []
    """score sequences: FASTA, CSV, TSV or other sequence files; one TSV row for every input, in its order"""
    genome: Path | None = None
    """scan a genome: FASTA or other sequence file"""
    scan: ScanConfig = ScanConfig()
    sequence_column: str = "sequence"
    id_column: str = "id"
    duplicate_ids: Literal["error", "rename"] = "error"
    """records with the id of an earlier one: stop, or name them id_2, id_3, ... and count it"""
    on_bad_record: Literal["error", "note"] = "note"
    """a record with bad letters, or none: stop, or leave its scores empty and say why in the column note"""
    long_sequences: Literal["error", "skip", "truncate", "window"] = "error"
    """longer than the model's context: stop, give no score, use the beginning, or average over windows"""
    overlap: Annotated[int, Field(ge=0)] = 64
    """letters that consecutive windows share, at least"""
    batch_size: Positive = 64


class ScoreConfig(StageConfig):
    """Scores without labels: log-likelihoods of sequences, of variants, of protein substitutions."""

    checkpoint: Path
    """folder written by pretrain"""
    input: list[Path] = []
    """score sequences: FASTA, CSV, TSV or other sequence files"""
    sequence_column: str = "sequence"
    id_column: str = "id"
    duplicate_ids: Literal["error", "rename"] = "error"
    """sequences with the id of an earlier one: stop, or name them id_2, id_3, ... and count it"""
    long_sequences: Literal["error", "skip", "truncate", "window"] = "error"
    """sequences longer than the model's context: stop, give no score, use the beginning, or read windows"""
    overlap: Annotated[int, Field(ge=0)] = 64
    """letters that consecutive windows share, at least"""
    variants: Path | None = None
    """score variants: VCF file; every allele of a row has a row of its own"""
    genome: Path | None = None
    """variants: FASTA that they were called on; reference alleles are checked against it"""
    window: Positive | None = None
    """variants: bases shown to the model, the variant in the middle (default: its context)"""
    method: Literal["masked", "window"] = "masked"
    """variants: substitutions by the hidden bases that change, or by all bases of the window, one after the
    other, as insertions and deletions always are"""
    strandless: bool = False
    """variants: average over both strands"""
    classifier: Path | None = None
    """variants: also give the change of the score of this classifier, written by finetune"""
    positive: str | None = None
    """classifier: class that is scored (default: the last one)"""
    classifier_window: Positive | None = None
    """classifier: bases of the windows it was trained on (default: as its config records)"""
    offset: Annotated[int, Field(ge=0)] | None = None
    """classifier: bases of its window before the first one that changes (default: all that there can be, and
    the window that changes most)"""
    strand: Literal["+", "-", "best"] = "best"
    """classifier: strand that it reads, or the one on which either allele scores higher"""
    substitutions: Path | None = None
    """score protein substitutions: CSV, TSV or Parquet table with A24G, or A24G:L30P, in a column"""
    wild_type: Path | None = None
    """substitutions: FASTA with the protein, or the proteins, that they change"""
    substitution_column: str = "mutant"
    """substitutions: column that holds them"""
    protein_column: str | None = None
    """substitutions: column with the record of wild_type that is changed, if that has several"""
    measured_column: str | None = None
    """substitutions: column with measured effects, for Spearman's correlation"""
    on_bad_record: Literal["error", "note"] = "note"
    """what cannot be scored: stop there, or leave its scores empty and say why in the column note"""
    batch_size: Positive = 64
    """windows of the model's context read at once (or as many tokens in shorter ones)"""


class MotifsConfig(StageConfig):
    """Read motifs out of a classifier's attention: enriched words of attended regions -> matrices, logos."""

    checkpoint: Path
    """classifier written by finetune"""
    data: Path
    """labelled corpus: positives against the other classes"""
    positive: str | None = None
    """class whose motifs are sought (default: the last one)"""
    discover_on: list[str] = ["train"]
    """splits that words are chosen on and matrices grow from"""
    test_on: list[str] = ["validation", "test"]
    """splits that p-values, positions and pairs are from; the classifier must not have been trained on them.
    The same splits as discover_on: these are halved, clusters kept together"""
    max_sequences: Positive = 1000
    """sequences of each kind read from each half, at most"""
    heads: list[str] = []
    """heads to read, as layer.head from 0 (default: all)"""
    queries: Literal["cls", "all"] = "cls"
    """whose attention is read: that of the first token, or the mean over all tokens"""
    strands: Literal["given", "both"] = "given"
    """strands on which motifs are sought: the one that sequences are given on (promoters have a direction),
    or both, for sites that may lie either way round"""
    word_length: Annotated[int, Field(ge=3, le=10)] = 6
    """length of the seed words"""
    words_per_head: Positive = 100
    """words of a head that are tested, at most"""
    min_region: Positive = 6
    """shortest attended region"""
    q_value: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """false discovery rate over all heads and words tested"""
    max_motifs: Positive = 8
    """motifs kept, best first"""
    site_p_value: Annotated[float, Field(gt=0, lt=1)] = 0.003
    """largest p-value of an instance: chance that one random window scores as high"""
    max_spacing: Positive = 50
    """largest number of bases between two motifs of a pair"""
    controls: list[
        Literal["untrained", "shuffled_positives", "permuted_labels", "random_regions", "no_attention"]
    ] = ["untrained", "shuffled_positives", "permuted_labels", "random_regions", "no_attention"]
    """what the same search is also run on: attention of an untrained network, positives shuffled so that they
    keep their dinucleotides, labels in random order, equally many and long regions of other sequences, whole
    sequences"""
    permutations: Positive = 10
    """runs of the control permuted_labels"""
    mutagenesis: Annotated[int, Field(ge=0)] = 100
    """positives whose bases are all mutated in silico, to see which motifs the classifier needs (0: none)"""
    database: list[Path] = []
    """known motifs to compare with (MEME or JASPAR files)"""
    expected: list[str] = []
    """names in the database that should be found (simulated data)"""
    batch_size: Positive = 64


class ContactsConfig(StageConfig):
    """Contact maps from a protein model, and their precision against a structure."""

    checkpoint: Path
    """folder written by pretrain (either architecture)"""
    data: Path
    """corpus or FASTA with the protein, or the family's alignment"""
    query: str | None = None
    """record whose map is wanted (default: the one closest to the structure, else the first)"""
    structure: Path | None = None
    """PDB or mmCIF file"""
    chain: str | None = None
    """chain of the structure, author naming (default: the only one)"""
    contacts: Path | None = None
    """table of true contacts instead of a structure: columns i and j, 1-based"""
    min_separation: Positive = 6
    """smallest |i - j| scored"""
    distance: Annotated[float, Field(gt=0)] = 8.0
    """largest C-beta distance of a contact, in angstrom"""
    max_sequences: Positive = 64
    """rows of the data that attention, or the Jacobian, is averaged over (strand architecture)"""
    jacobian: bool = False
    """score by the categorical Jacobian, what every substitution does to the logits elsewhere, instead of
    attention: 19 readings of a row for each of its residues (strand architecture)"""


class ContactHeadConfig(StageConfig):
    """Fit ESM's contact regression on structures and store it in a copy of the checkpoint."""

    checkpoint: Path
    """protein model: a folder written by pretrain or convert"""
    structures: Annotated[list[Path], Field(min_length=1)]
    """PDB and mmCIF files, or folders with them; of several chains the one that the name ends in, as in
    1ABC_B.pdb"""
    families: Path | None = None
    """table with the columns structure (name of the file) and family: what is held out together (default: by
    similarity)"""
    similarity: Annotated[float, Field(ge=0)] = 1e-3
    """proteins are of one family where their local alignment has an E-value below this"""
    fit_on: Positive | None = None
    """structures that a regression is fitted on, drawn by the seed (default: all; ESM: 20)"""
    strength: Annotated[float, Field(gt=0)] = 0.15
    """C of scikit-learn's logistic regression with an L1 penalty: smaller is stronger"""
    min_separation: Positive = 6
    """smallest |i - j| fitted and scored"""
    distance: Annotated[float, Field(gt=0)] = 8.0
    """largest C-beta distance of a contact, in angstrom"""
