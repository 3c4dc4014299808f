"""The schema of every stage: YAML and flags go in, a frozen object or one clear error comes out.

A value is looked up in three places, the first wins: a flag (``--optimizer.learning-rate 3e-4``), the YAML
file given with ``--config``, the default written here. This module imports nothing heavy: it is what
``--help`` needs.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]
Alphabet = Literal["dna", "protein"]


class Section(BaseModel):
    """A group of settings; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_surprise(cls, value: Any, info: ValidationInfo) -> Any:
        """Take one path or name as a list of one, and no truth value as the number 0 or 1."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("true and false are no values of this key")
        return [value] if get_origin(kind) is list and isinstance(value, str | Path) else value


class StageConfig(Section):
    """What every stage takes."""

    output: Path
    """folder to write; it appears complete or not at all"""
    seed: Annotated[int, Field(ge=0)] = 0
    """seed of everything random in this stage"""
    name: str | None = None
    """name shown in logs and in the report (default: the output folder's)"""


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


class LettersConfig(Section):
    """What becomes of letters that a model does not read as they are.

    The saved tokenizer does the same; what is refused in files, and stops, are <unk> there.
    """

    case: Literal["fold", "soft-mask"] = "fold"
    """lower case: fold it to upper case, or fold it and remember it as soft mask (repeats)"""
    uracil: Literal["t", "error"] = "t"
    """DNA: U becomes T, or is refused"""
    ambiguous: Literal["n", "error"] = "n"
    """DNA: the IUPAC codes R Y S W K M B D H V become N, or are refused"""
    xle: Literal["x", "l", "error"] = "x"
    """proteins: J (leucine or isoleucine) becomes X or L, or is refused"""
    rare: Literal["keep", "x"] = "keep"
    """proteins: B Z U O keep tokens of their own, or become X"""
    stops: Literal["error", "split"] = "error"
    """proteins: a * before the end is refused, or cuts the record (one at the end is always stripped)"""
    gaps: Literal["error", "remove"] = "error"
    """- and . outside of alignments are refused, or removed (corpus column gaps says where)"""


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


class ModelConfig(Section):
    """Shape of the network."""

    architecture: Literal["strand", "factored"] = "strand"
    """strand: rotary Transformer encoder; factored: factored attention for one aligned family"""
    hidden_size: Positive = 128
    num_hidden_layers: Positive = 4
    num_attention_heads: Positive = 4
    intermediate_size: Positive | None = None
    """width of the feed-forward part (default: 8/3 of hidden_size, in multiples of 8)"""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_bias: Literal["all", "layers", "none"] = "all"
    """which layer norms have a bias: all, those of the layers, or none"""
    norm_placement: Literal["pre", "post"] = "pre"
    """norms before attention and feed-forward part, or after them (as in BERT)"""
    activation: Literal["swiglu", "gelu"] = "swiglu"
    use_bias: bool = False
    qk_norm: bool = False
    """normalise queries and keys"""
    qk_norm_over: Literal["head", "model"] = "head"
    """over each head's channels, or over all"""
    residual_scale: Annotated[float, Field(gt=0)] = 1.0
    """factor of what each layer adds"""
    positions: Literal["rotary", "sinusoidal", "none"] = "rotary"
    rope_theta: Annotated[float, Field(gt=1)] | None = None
    """base of the rotary angles (default: 10,000, or that of start_from); larger for longer contexts"""
    sliding_window: Positive | None = None
    """tokens seen to either side (default: all), except in every global_every-th layer"""
    global_every: Positive = 3
    """one layer of so many sees all tokens, the first among them"""
    token_dropout: bool = False
    """show masks as zeros and scale the other tokens for it, as ESM-2 does"""
    lm_head: Literal["linear", "dense"] = "linear"
    """dense: a layer with GELU and layer norm before the decoder, as ESM-2 has"""
    tie_word_embeddings: bool = True


class MaskingConfig(Section):
    """Which bases (or residues) are hidden, and how."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """share of bases hidden"""
    run: Positive | None = None
    """bases hidden together, or their mean (default: the tokenizer's k)"""
    run_lengths: Literal["fixed", "geometric"] = "fixed"
    """runs all as long as run, or of random length, geometric with that mean"""
    replace: Fraction = 0.1
    """share of hidden runs that show random bases instead of a mask"""
    keep: Fraction = 0.1
    """share of hidden runs that show the true bases"""
    soft_mask_weight: Fraction = 1.0
    """weight in the loss of targets that are soft-masked (the corpus needs letters.case: soft-mask)"""


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule."""

    method: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised updates for the matrices of the layers, AdamW for all else"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """peak learning rate"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest gradient norm"""
    warmup: Annotated[int, Field(ge=0)] = 50
    """steps from zero to the peak"""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """after the warm-up: a cosine, a straight line, or the peak until a straight decay at the end (wsd: a run
    that is lengthened goes on from before the decay, exactly as if it had been longer from the start)"""
    decay: Fraction = 0.1
    """wsd: share of the steps that the decay takes"""
    final: Fraction = 0.0
    """share of the peak that the last step has"""


class MixtureConfig(Section):
    """How much of what is read comes from each of several data sets."""

    weights: list[Annotated[float, Field(gt=0)]] = []
    """one number for each data set, in their order (default: their sizes)"""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """shares are weights ^ (1 / temperature): the larger, the more alike"""


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
    "motifs": MotifsConfig,
    "contacts": ContactsConfig,
    "embed": EmbedConfig,
    "build-tokenizer": BuildTokenizerConfig,
    "report": ReportConfig,
}
