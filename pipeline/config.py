"""The schema of every stage: YAML and flags go in, a frozen object or one clear error comes out.

A value is looked up in three places, the first wins: a flag (``--optimizer.learning-rate 3e-4``), the YAML
file given with ``--config``, the default written here. This module imports nothing heavy: it is what
``--help`` needs.

The schemas of the other stages are in ``pipeline.settings``; all are to be had from here.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    create_model,
    field_validator,
    model_validator,
)

from pipeline.settings.analysis import (
    CompareConfig,
    ContactHeadConfig,
    ContactsConfig,
    EvaluateConfig,
    MotifsConfig,
    PredictConfig,
    ScoreConfig,
)
from pipeline.settings.sections import (
    Alphabet,
    Fraction,
    LettersConfig,
    LoraConfig,
    MaskingConfig,
    MixtureConfig,
    ModelConfig,
    OptimizerConfig,
    Positive,
    Section,
    StageConfig,
)
from pipeline.settings.sequences import NegativesConfig, PrepareConfig, SimulateConfig
from pipeline.settings.vectors import EmbedConfig, ProbeConfig


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
    task: Literal["classes", "values", "labels", "letters"] = "classes"
    """what is learnt: the class of a sequence; or, from the columns that targets names, numbers, labels that
    are 0 or 1 each by itself, or a class for each letter"""
    targets: list[str] = []
    """columns of the corpus (prepare's keep_columns) for the tasks other than classes; for letters one, with
    texts as long as the sequences in which each character is a class"""
    positive: str | None = None
    """class that scores are given for (default: the last one)"""
    group_column: str | None = None
    """corpus column: report the positives against each group of negatives separately"""
    reference_column: str | None = None
    """corpus column with the best possible score, where it is known (simulated data)"""
    adapt: Literal["full", "lora", "head"] = "full"
    """what is trained: all weights, low-rank updates of layers' matrices and the head, or the head alone"""
    lora: LoraConfig = LoraConfig()
    pooling: Literal["cls", "mean", "attention"] = "cls"
    """what is classified: the vector of the first token, which sees where things are, the mean over all, or a
    mean with weights that are learnt"""
    freeze_embeddings: bool = False
    """leave the token table as it is: few sequences cannot teach thousands of k-mers, only be memorised"""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """passes over the training rows (default: 4, or as many as make 500 steps)"""
    batch_size: Positive = 64
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    warmup: Fraction = 0.1
    """share of the steps spent warming up"""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """factor of the learning rate from each layer to the one below; the token table has the smallest rate"""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: rows of rare classes count for more, so that each class has the same share of the loss"""
    patience: Annotated[int, Field(ge=0)] = 0
    """stop after so many epochs in a row that did not validate better (0: never)"""
    hide: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """share of the letters of training rows that are masked, others in every epoch: few sequences are then
    not learnt by heart"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """share of what layers add to vectors that is dropped in training, to the same end (default: that of the
    checkpoint's config, usually 0)"""
    gradient_checkpointing: bool = False
    """compute activations again in the backward pass: less memory, a third more time; the same results"""
    reverse_complement: bool = False
    """show each training row as its other strand in half of the epochs (simple controls are shown both): for
    labels without a strand, of a corpus prepared with strandless; predictions read the strand given"""
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
    seeds: Positive = 1
    """train that many classifiers, with seed, seed + 1, ...; figures are means over them"""
    folds: Annotated[int, Field(ge=0)] = 0
    """3 or more: divide all rows of the corpus into so many parts; each is the test split once, the next one
    is for validation, the others are for training (0: the splits of the corpus)"""
    fold_by: Literal["sequence", "cluster", "chromosome"] = "sequence"
    """folds: what stays together: equal sequences, clusters (the column cluster that prepare writes where it
    splits by cluster, or cluster_column), or chromosomes (records, where there is no column chromosome)"""
    shuffled_negatives: bool = True
    """two classes of DNA: also set the scored positives against shuffled copies of themselves, which keep
    dinucleotides, or 8 of 20 segments"""
    other_negatives: dict[str, Path] = {}
    """two classes: also set the scored positives against the sequences of these files: name = file"""
    start_site: Annotated[int, Field(ge=0)] | None = None
    """bases of a window before its start site, for predictions on genomes (default: the anchor that prepare
    cut windows around, if it did)"""

    @field_validator("folds")
    @classmethod
    def _some_to_train_on(cls, value: int) -> int:
        if value in (1, 2):
            raise ValueError("one part is tested, one validates: use 3 or more, or 0 for the corpus's splits")
        return value


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
    "negatives": NegativesConfig,
    "tokenize": TokenizeConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
    "compare": CompareConfig,
    "predict": PredictConfig,
    "score": ScoreConfig,
    "motifs": MotifsConfig,
    "contacts": ContactsConfig,
    "contact-head": ContactHeadConfig,
    "embed": EmbedConfig,
    "probe": ProbeConfig,
    "convert": ConvertConfig,
    "build-tokenizer": BuildTokenizerConfig,
    "report": ReportConfig,
}
