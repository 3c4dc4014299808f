"""The schema of every stage: YAML and flags go in, a frozen object or one clear error comes out.

A value is looked up in three places, the first wins: a flag (``--optimizer.learning-rate 3e-4``), the YAML
file given with ``--config``, the default written here. This module imports nothing heavy: it is what
``--help`` needs.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    create_model,
    field_validator,
    model_validator,
)

from pipeline.sections import (
    Alphabet,
    Fraction,
    LettersConfig,
    MaskingConfig,
    MixtureConfig,
    ModelConfig,
    OptimizerConfig,
    Positive,
    Section,
    StageConfig,
)


class SimulateConfig(StageConfig):
    """Make a small world whose truth is known: a genome, promoters with decoys, a protein family."""

    genome_length: Annotated[int, Field(ge=20_000)] = 600_000
    """bases of the simulated bacterial chromosome"""
    promoters: Annotated[int, Field(ge=50)] = 6000
    """labelled promoter windows; as many background windows, decoys among them"""
    window: Annotated[int, Field(ge=64)] = 81
    """bases of a labelled window (start site at base 61)"""
    family_sequences: Annotated[int, Field(ge=2)] = 2000
    """members of the protein family"""
    family_length: Annotated[int, Field(ge=20)] = 60
    """residues of each member (aligned, without gaps)"""
    decoy_motifs: Annotated[int, Field(ge=0)] = 200
    """matrices in the motif database beside the planted ones"""


class PrepareConfig(StageConfig):
    """Read sequence files, check and clean them, drop duplicates, split them: a corpus."""

    input: list[Path] = []
    """files, folders or globs: FASTA, FASTQ, GenBank, EMBL, A3M, Stockholm, CSV, TSV, Parquet, plain or
    compressed; with genome: BED, narrowPeak, GFF, GTF or VCF"""
    classes: dict[str, Path] = {}
    """labelled input: class name = file, the first class is label 0"""
    test_input: list[Path] = []
    """records for the test split alone; whatever is too close to them leaves training and validation"""
    genome: Path | None = None
    """FASTA that the intervals of the input are cut out of"""
    feature: str | None = None
    """intervals: only features of this type (GFF, GTF)"""
    anchor: Literal["start", "end", "center"] | None = None
    """intervals: cut around this base, on the strand of the interval (default: the whole interval)"""
    upstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases before the anchor or interval"""
    downstream: Annotated[int, Field(ge=0)] = 0
    """intervals: bases after the anchor or interval"""
    circular: list[str] = []
    """records of the genome whose ends join: windows may run over the origin (* for all)"""
    alphabet: Alphabet = "dna"
    """letters that sequences are made of"""
    letters: LettersConfig = LettersConfig()
    aligned: bool = False
    """keep gaps: every record is a row of one alignment"""
    sequence_column: str = "sequence"
    """tables: column that holds the sequence"""
    id_column: str = "id"
    """tables: column that holds the identifier (row numbers where absent)"""
    label_column: str | None = None
    """tables: column that holds the class"""
    split_column: str | None = None
    """tables: column with train, validation or test; otherwise records are split as split_by says"""
    keep_columns: list[str] = []
    """tables: further columns carried through to the corpus"""
    split_by: Literal["auto", "sequence", "record", "chromosome", "block", "cluster"] = "auto"
    """what stays together: equal sequences, records, chromosomes, blocks that share no repeat, or clusters of
    similar sequences (auto: block where block is given, else sequence)"""
    validation: Fraction = 0.05
    """share of what is split that is held out for validation"""
    test: Fraction = 0.05
    """share of what is split that is held out for testing"""
    validation_names: list[str] = []
    """records or chromosomes for validation, by name, instead of a share"""
    test_names: list[str] = []
    """records or chromosomes for testing, by name, instead of a share"""
    block: Positive | None = None
    """cut records into blocks of this many letters (genomes)"""
    buffer: Annotated[int, Field(ge=0)] = 512
    """letters cut off a block where it borders on another split; at least the context of the model"""
    repeat: Annotated[int, Field(ge=16)] = 100
    """blocks that share an exact repeat of this many bases, on either strand, stay together"""
    cluster_with: Literal["kmers", "mmseqs2"] = "kmers"
    """similar sequences are found by the k-mers they share, or by MMseqs2, which has to be on the PATH"""
    cluster_kmer: Annotated[int, Field(ge=3)] | None = None
    """kmers: DNA that shares one stretch of this many bases is similar (default 30); proteins: 5"""
    identity: Annotated[float, Field(gt=0, le=1)] = 0.5
    """proteins, mmseqs2: smallest identity of sequences that are similar"""
    coverage: Annotated[float, Field(gt=0, le=1)] = 0.8
    """proteins, mmseqs2: smallest share of both sequences that is alike"""
    strandless: bool = False
    """DNA: a sequence and its reverse complement are the same thing: one of the two is a duplicate"""
    min_length: Positive = 1
    """shorter records are dropped and counted"""
    max_unknown: Fraction = 0.5
    """records (or blocks) with a larger share of N, or of X and gaps, are dropped and counted"""
    deduplicate: bool = True
    """drop exact duplicates, counted"""
    on_bad_record: Literal["error", "skip"] = "error"
    """a record with bad letters, qualities or coordinates: stop, or drop it and count it"""
    duplicate_ids: Literal["error", "rename"] = "error"
    """records with the id of an earlier one: stop, or name them id_2, id_3, ... and count it"""


class TokenizeConfig(StageConfig):
    """Turn a corpus into integer arrays with a tokenizer."""

    corpus: Path
    """folder written by prepare"""
    tokenizer: str = "dna-6mer"
    """a tokenizer that comes with strandlm, or a folder with one"""


class PretrainConfig(StageConfig):
    """Train a masked language model on tokens."""

    data: Annotated[list[Path], Field(min_length=1)]
    """folders written by tokenize, with one tokenizer: one, or several to be mixed"""
    mixture: MixtureConfig = MixtureConfig()
    start_from: Path | None = None
    """checkpoint whose weights and shape are the start (default: random weights of the shape below); window
    and model.rope_theta may differ from its own, for a longer context"""
    model: ModelConfig = ModelConfig()
    masking: MaskingConfig = MaskingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: Positive = 1000
    """optimizer steps"""
    window: Positive = 510
    """longest piece of sequence shown at once, in bases or residues: the model's context"""
    window_warmup: Annotated[int, Field(ge=0)] = 0
    """steps in which windows grow from an eighth of that to all of it"""
    tokens_per_step: Positive = 16_384
    """tokens in an optimizer step, over all processes"""
    micro_batch_tokens: Positive = 8192
    """tokens in memory at once, per process; changes speed, not results"""
    evaluate_every: Positive = 250
    """steps between validations"""
    evaluation_bases: Positive = 100_000
    """bases (residues) of validation and of test text scored, at most"""
    checkpoint_every: Positive = 250
    """steps between checkpoints"""
    keep_checkpoints: Annotated[int, Field(ge=-1)] = 2
    """newest checkpoints kept (-1: all); the newest and the best are never deleted"""
    keep_best: bool = True
    """end with the weights that validated best, not with the last (without a validation split: the last)"""
    log_every: Positive = 10
    """steps between log lines"""
    resume: Literal["auto", "never"] | Path = "auto"
    """auto: go on from the newest complete checkpoint of an interrupted run, or of a finished one that had
    fewer steps; never: start over; or the folder of a checkpoint to go on from"""
    resume_changed: bool = False
    """go on though settings changed that the result depends on (they are named, and go on record)"""
    max_bad_steps: Positive = 3
    """steps in a row without a finite loss and gradient, each passed over, after which the run stops"""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """bf16: automatic mixed precision; fp16: refused on a GPU, and read as no elsewhere"""
    gradient_checkpointing: bool = False
    """compute activations again in the backward pass: less memory, a third more time; the same results"""
    compile: bool = False
    """compile the network with torch.compile: for long runs on GPUs; on CPUs it gains nothing"""
    trackers: list[str] = []
    """also log to these trackers of Accelerate, by name (wandb, mlflow, comet_ml, aim, clearml, ...)"""
    dry_run: bool = False
    """print the plan (parameters, steps, memory, work) and stop"""
    count_model: bool = True
    """score the two-sided count model on the same hidden runs, as the baseline"""
    launch: str | None = None
    """strandlm run: launcher put before the command, for example 'accelerate launch --num_processes 4'"""

    @field_validator("resume")
    @classmethod
    def _no_other_word(cls, value: Any) -> Any:
        if isinstance(value, Path) and not value.name.startswith("step-"):
            raise ValueError("use 'auto' or 'never', or a checkpoint's folder (.../step-000123)")
        return value


class FinetuneConfig(StageConfig):
    """Train a sequence classifier from a checkpoint, with the same network from random weights beside it."""

    checkpoint: Path
    """folder written by pretrain (or any strand checkpoint)"""
    data: Path
    """labelled corpus written by prepare"""
    positive: str | None = None
    """class that scores are given for (default: the last one)"""
    group_column: str | None = None
    """corpus column: report the positives against each group of negatives separately"""
    reference_column: str | None = None
    """corpus column with the best possible score, where it is known (simulated data)"""
    pooling: Literal["cls", "mean"] = "cls"
    """what is classified: the vector of the first token, which sees where things are, or the mean over all"""
    freeze_embeddings: bool = False
    """leave the token table as it is: few sequences cannot teach thousands of k-mers, only be memorised"""
    epochs: Annotated[float, Field(gt=0)] = 4
    batch_size: Positive = 64
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup: Fraction = 0.1
    """share of the steps spent warming up"""
    untrained_control: bool = True
    """also train the same network from random weights, and report it"""
    controls: list[Literal["gc", "kmers", "positions", "pwm", "cnn"]] = ["gc", "kmers", "positions", "pwm"]
    """also train these on the same rows, and report them: logistic regressions on GC content, on k-mers and
    on the letter at each place, position weight matrices, and (on request) a small convolutional network"""
    best_by: Literal["loss", "mcc", "auroc"] = "loss"
    """end with the weights of the epoch that validated best by this"""
    cluster_column: str | None = None
    """corpus column: sequences that share a value are resampled together for the intervals (default: cluster,
    if prepare wrote it)"""
    allow_collapse: bool = False
    """keep a classifier that calls all sequences the same, with a warning, instead of stopping"""


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
    """Score sequences with a classifier: one TSV row for every input, in its order."""

    checkpoint: Path
    """classifier written by finetune"""
    input: list[Path]
    """FASTA, CSV, TSV or other sequence files"""
    sequence_column: str = "sequence"
    id_column: str = "id"
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
    """classifier: bases of the windows it was trained on"""
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
    split: list[str] = ["train", "validation", "test"]
    """splits of the corpus that are read"""
    max_sequences: Positive = 2000
    """sequences of each kind read, at most"""
    heads: list[str] = []
    """heads to read, as layer.head from 0 (default: all)"""
    queries: Literal["cls", "all"] = "cls"
    """whose attention is read: that of the first token, or the mean over all tokens"""
    word_length: Positive = 6
    """length of the seed words"""
    min_region: Positive = 6
    """shortest attended region"""
    q_value: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """false discovery rate over all heads and words"""
    max_motifs: Positive = 8
    """motifs kept, best first"""
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
    """rows of the data that attention is averaged over (strand architecture)"""


class EmbedConfig(StageConfig):
    """Vectors of sequences: one for each record, or one for each token."""

    checkpoint: Path
    """any strand checkpoint"""
    input: list[Path]
    """FASTA, CSV, TSV or other sequence files"""
    sequence_column: str = "sequence"
    id_column: str = "id"
    pooling: Literal["mean", "none"] = "mean"
    """mean over the tokens of a record, or every token"""
    layer: int = -1
    """hidden layer: 0 is the embedding, -1 the last"""
    long_sequences: Literal["error", "skip", "truncate", "window"] = "error"
    """longer than the model's context: stop, leave out, use the beginning, or stitch windows together"""
    overlap: Annotated[int, Field(ge=0)] = 64
    """letters that consecutive windows share, at least"""
    batch_size: Positive = 32


class ConversionConfig(StageConfig):
    """Take over weights of ESM-2 or ESM C (--from esm2 SOURCE), or write ours as ESM (--to esm SOURCE)."""

    to: Annotated[list[Literal["esm"]], Field(max_length=1)] = []
    """write a checkpoint of ours in the layout of ESM, which opens without our code"""
    source: Path | None = None
    """checkpoint, which can also follow the layout; with from: a folder, or a name on the Hugging Face Hub"""

    @model_validator(mode="before")
    @classmethod
    def _take_source(cls, values: Any) -> Any:
        """Read ``--from esm2 SOURCE`` as a layout and its source, which may have commas in it."""
        for key in ("from", "to"):
            given = values.get(key)
            if isinstance(given, list) and len(given) > 1 and values.get("source") is None:
                values = {**values, key: given[:1], "source": ",".join(given[1:])}
        return values


_FROM: dict[str, Any] = {  # a keyword of Python's, so no name in a class
    "from": (
        Annotated[list[Literal["esm2", "esmc"]], Field(max_length=1)],
        Field([], description="take over a checkpoint in this layout of the Hugging Face classes"),
    )
}
ConvertConfig = create_model(
    "ConvertConfig", __base__=ConversionConfig, __doc__=ConversionConfig.__doc__, **_FROM
)


class BuildTokenizerConfig(StageConfig):
    """Write a tokenizer that AutoTokenizer can load: k-mers, codons, residues, or byte pairs of a corpus."""

    alphabet: Alphabet = "dna"
    units: Literal["k-mers", "codons", "byte-pairs"] = "k-mers"
    """what a token is: k letters, a codon in frame from the first base, or a piece learnt from a corpus"""
    k: Annotated[int, Field(ge=1, le=8)] | None = None
    """letters in a token (default: 6, for proteins 1)"""
    overlapping: bool = False
    """one token for every base instead of one for every k bases"""
    corpus: Path | None = None
    """byte pairs: folder written by prepare that they are learnt from"""
    vocabulary_size: Annotated[int, Field(ge=16)] = 512
    """byte pairs: tokens in all, specials included"""
    longest: Annotated[int, Field(ge=2)] = 16
    """byte pairs: letters in the longest token"""
    letters: LettersConfig = LettersConfig()
    max_length: Annotated[int, Field(ge=3)] = 512
    """context in tokens, specials included"""


class ReportConfig(StageConfig):
    """Draw what a run found: report.html and report.json."""

    run: Path
    """folder that holds the stages' folders"""
    stages: list[str]
    """names of the stages, in order"""
    title: str = "StrandLM run"
    simulated: bool = False
    """label everything as simulated"""


class RunConfig(Section):
    """Run a pipeline: all stages of a configuration whose inputs or settings changed, then the report."""

    output: Path
    """folder of the run"""
    title: str = "StrandLM run"
    """heading of the report"""
    simulated: bool = False
    """label everything as simulated"""
    seed: Annotated[int, Field(ge=0)] = 0
    """seed of every stage that does not set its own"""
    inputs: dict[str, Path | None] = {}
    """files that stages refer to as $name"""
    stages: dict[str, dict] = {}
    """name = stage and its settings; $name in a path is an input or an earlier stage's folder"""
    cores: Positive | None = None
    """processor cores to use (default: 2, or what the profile says)"""
    profile: str | None = None
    """Snakemake profile: default, slurm, or a folder"""
    dry_run: bool = False
    """show what would run, and stop"""


STAGES: dict[str, type[StageConfig]] = {
    "simulate": SimulateConfig,
    "prepare": PrepareConfig,
    "tokenize": TokenizeConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
    "compare": CompareConfig,
    "predict": PredictConfig,
    "score": ScoreConfig,
    "motifs": MotifsConfig,
    "contacts": ContactsConfig,
    "embed": EmbedConfig,
    "convert": ConvertConfig,
    "build-tokenizer": BuildTokenizerConfig,
    "report": ReportConfig,
}
