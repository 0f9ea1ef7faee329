"""Every setting of an experiment: a field with its type, its default and its `Setting`; and what they say together."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crad.config.contradictions import contradiction
from crad.config.recipes import PUBLISHED, RECIPES, Recipe
from crad.config.setting import (
    Accountant,
    AtLeastOne,
    AttackKind,
    ClipNorm,
    Device,
    DistillAugment,
    DistillSchedule,
    EngineKind,
    EvidenceSource,
    FilterKind,
    LocalLoss,
    LrSchedule,
    Names,
    Norm,
    NotNegative,
    OptimizerKind,
    Pairs,
    PartitionKind,
    Positive,
    Setting,
    Standardize,
    TeacherPrecision,
    TeacherPrior,
    Unsupported,
    Workers,
)


class ExperimentFields(BaseModel):
    """The fields of `Experiment`, which adds presets and older names. Frozen; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[
        str,
        Field(min_length=1),
        Setting(
            "Data set: a known name, a table (.csv, .parquet), an .npz file or a folder of class folders (images, "
            "recordings)",
            "Data",
            "world",
            "private",
            also_called="data",
            metavar="NAME|FILE|FOLDER",
            is_said_alone=True,
            sets_pace=True,
        ),
    ] = "cifar10"
    method: Annotated[
        str,
        Setting(
            "Method: crad, crad-plus, uniform, uncertainty, an ablation rule, fedmd, fedgd, msfkd, dfml, "
            "fedmkd, experts, committee, local, centralized, or your own as package.module:Class",
            "Experiment",
            "method",
            "agreed",
        ),
    ] = "crad"
    method_settings: Annotated[
        dict[str, bool | int | float | str],
        Setting("Settings of the method's own, as name=value,...", "Experiment", "method", "agreed"),
    ] = Field(default_factory=dict)
    preset: Annotated[
        str,
        Setting("Where the other defaults come from", "Experiment", "extent", "simulated"),
    ] = "paper"
    seed: Annotated[
        int,
        Field(ge=0),
        Setting("Seed of every random draw", "Experiment", "extent", "agreed elsewhere", metavar="INTEGER"),
    ] = 1024
    clients: Annotated[
        AtLeastOne, Setting("Number of clients", "Federation", "world", "agreed elsewhere", sets_pace=True)
    ] = 10
    active: Annotated[
        AtLeastOne | None,
        Setting(
            "Clients drawn to take part in a round (all)",
            "Federation",
            "world",
            "agreed",
            words={None: "all active"},
            sets_pace=True,
        ),
    ] = None
    rounds: Annotated[AtLeastOne, Setting("Communication rounds", "Federation", "extent", "agreed")] = 300
    partition: Annotated[
        PartitionKind,
        Setting(
            "How the data is divided among the clients: dirichlet, iid, shards, quantity (sizes by alpha), or natural: "
            "a client per site",
            "Data",
            "world",
            "simulated",
            is_said_alone=True,
        ),
    ] = "dirichlet"
    alpha: Annotated[
        Positive, Setting("Dirichlet concentration: smaller is more skewed", "Data", "world", "simulated")
    ] = 0.3
    label: Annotated[
        str | None,
        Setting("Column of a table that is the label", "Data", "world", "simulated", before=None, metavar="COLUMN"),
    ] = None
    site: Annotated[
        str | None,
        Setting(
            "Whose sample it is, for partition natural: a table's column; of class folders 'folder' (SITE/CLASS/file) "
            "or 'filename' (SITE_1.wav)",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="COLUMN",
        ),
    ] = None
    ignore: Annotated[
        Names,
        Setting(
            "Columns of a table that are no input", "Data", "world", "simulated", before=None, metavar="COLUMN,..."
        ),
    ] = None
    categories: Annotated[
        Names,
        Setting(
            "Columns of a table whose numbers are codes of categories",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="COLUMN,...",
        ),
    ] = None
    missing: Annotated[
        Pairs,
        Setting(
            "Codes in a table that mean a gap, such as chol=0",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="COLUMN=CODE,...",
        ),
    ] = None
    ranges: Annotated[
        Pairs,
        Setting(
            "Expected ranges of a table's numbers, such as age=0:120; a value outside is refused",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="COLUMN=LOW:HIGH,...",
        ),
    ] = None
    standardize: Annotated[
        Standardize,
        Setting(
            "By what a table's numbers are standardised: own (statistics of the client's training rows) or schema (the "
            "agreed ranges)",
            "Data",
            "learning",
            "agreed",
            before="own",
            words={"schema": "agreed ranges", "own": "own statistics"},
        ),
    ] = "own"
    text: Annotated[
        Names,
        Setting(
            "Columns of a table that hold texts, which are then what is learned from",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="COLUMN,...",
        ),
    ] = None
    vocabulary: Annotated[
        Annotated[int, Field(ge=256, le=1_000_000)],
        Setting(
            "Ids that the words of texts are hashed to", "Data", "world", "simulated", before=8192, metavar="COUNT"
        ),
    ] = 8192
    text_length: Annotated[
        Annotated[int, Field(ge=1, le=8192)],
        Setting(
            "Words of a text that are read; the rest is cut",
            "Data",
            "world",
            "simulated",
            before=64,
            metavar="COUNT",
            sets_pace=True,
        ),
    ] = 64
    test_data: Annotated[
        str | None,
        Setting(
            "Another file with the test rows of a table or of texts (a fifth of every class is split off)",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="FILE",
        ),
    ] = None
    classes_per_client: Annotated[
        AtLeastOne, Setting("Classes a client holds with partition shards", "Data", "world", "simulated")
    ] = 2
    held_out: Annotated[
        float,
        Field(gt=0, lt=1),
        Setting(
            "Share of each shard held out, half for validation and half for testing",
            "Data",
            "world",
            "agreed",
            metavar="SHARE",
        ),
    ] = 0.2
    train_limit: Annotated[
        AtLeastOne | None,
        Setting("Class-balanced subset of the training images", "Data", "world", "simulated", sets_pace=True),
    ] = None
    test_limit: Annotated[
        AtLeastOne | None,
        Setting("Class-balanced subset of the test images", "Data", "world", "simulated", sets_pace=True),
    ] = None
    resize: Annotated[
        Annotated[int, Field(ge=8, le=1024)] | None,
        Setting(
            "Bring all images to this many pixels on each side",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="PIXELS",
            sets_pace=True,
        ),
    ] = None
    kind: Annotated[
        str | None,
        Setting(
            "What an array holds where that is not plain: image, table, series or audio",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="KIND",
        ),
    ] = None
    seconds: Annotated[
        Positive | None,
        Setting(
            "Bring all recordings to this length (that of the longest)",
            "Data",
            "world",
            "simulated",
            before=None,
            metavar="SECONDS",
            sets_pace=True,
        ),
    ] = None
    proxy_size: Annotated[
        int,
        Field(ge=0),
        Setting(
            "Images taken out before the partition for the methods that need a proxy set",
            "Data",
            "learning",
            "simulated",
        ),
    ] = 500
    models: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        Setting(
            "Architectures, given to the clients in turn, separated by commas: ours, timm:NAME, package.module:build; "
            "with :weights=FILE if trained before",
            "Models",
            "learning",
            "agreed elsewhere",
            sets_pace=True,
        ),
    ] = ("resnet18", "resnet18-half", "cnn6")
    width: Annotated[
        float,
        Field(gt=0, le=4),
        Setting("Factor on the channel counts of our models", "Models", "learning", "agreed elsewhere", sets_pace=True),
    ] = 1.0
    local_epochs: Annotated[
        AtLeastOne, Setting("Epochs over the own shard per round", "Training", "learning", "agreed", sets_pace=True)
    ] = 1
    batch_size: Annotated[
        int,
        Field(ge=2),
        Setting("Batch size; a last batch of one is dropped", "Training", "learning", "agreed", sets_pace=True),
    ] = 64
    optimizer: Annotated[
        OptimizerKind,
        Setting(
            "Optimizer of the clients' models; adamw wants a smaller lr, such as 0.001",
            "Training",
            "learning",
            "agreed",
            before="sgd",
        ),
    ] = "sgd"
    lr: Annotated[Positive, Setting("Learning rate, at its highest", "Training", "learning", "agreed")] = 0.01
    lr_schedule: Annotated[
        LrSchedule,
        Setting(
            "Learning rate over the planned rounds: constant, or falling as half a cosine",
            "Training",
            "learning",
            "agreed",
            before="constant",
        ),
    ] = "constant"
    warmup_rounds: Annotated[
        int,
        Field(ge=0),
        Setting("First rounds in which the learning rate rises to lr", "Training", "learning", "agreed", before=0),
    ] = 0
    momentum: Annotated[float, Field(ge=0, lt=1), Setting("Momentum of SGD", "Training", "learning", "agreed")] = 0.9
    weight_decay: Annotated[
        NotNegative, Setting("Weight decay; apart from the gradient with adamw", "Training", "learning", "agreed")
    ] = 5e-4
    clip_norm: Annotated[
        ClipNorm,
        Setting(
            "Gradients are clipped to this L2 norm; none: they are not",
            "Training",
            "learning",
            "agreed",
            metavar="NUMBER|none",
        ),
    ] = 5.0
    augment: Annotated[
        bool, Setting("Random crops and flips, as the data set allows", "Training", "learning", "agreed elsewhere")
    ] = True
    temperature: Annotated[Positive, Setting("Distillation temperature T", "Distillation", "learning", "agreed")] = 3.0
    distill_weight: Annotated[
        float, Field(ge=0, le=1), Setting("Distillation weight lambda", "Distillation", "learning", "agreed")
    ] = 0.7
    min_support: Annotated[
        NotNegative,
        Setting("Validation samples a teacher needs to speak for a class", "Distillation", "learning", "agreed"),
    ] = 2
    unsupported: Annotated[
        Unsupported,
        Setting("A class nobody supports: plain mean, or literal zero", "Distillation", "learning", "agreed"),
    ] = "consensus"
    epsilon: Annotated[
        Positive,
        Setting(
            "Guards divisions in the rule; privacy's epsilon is private_training", "Distillation", "learning", "agreed"
        ),
    ] = 1e-8
    private_counts: Annotated[
        Positive | None,
        Setting(
            "Publish counts with Laplace noise of this epsilon, beside exact accuracies, as the paper does: these give "
            "the counts away; private_training protects both",
            "Privacy",
            "learning",
            "agreed",
        ),
    ] = None
    private_training: Annotated[
        Positive | None,
        Setting(
            "Train and publish with differential privacy: this epsilon for one record, over all planned rounds",
            "Privacy",
            "learning",
            "agreed",
            before=None,
            metavar="EPSILON",
            sets_pace=True,
        ),
    ] = None
    delta: Annotated[
        float,
        Field(gt=0, lt=1),
        Setting(
            "Chance that epsilon does not hold; below one by the number of records",
            "Privacy",
            "learning",
            "agreed",
            before=1e-5,
        ),
    ] = 1e-5
    max_grad_norm: Annotated[
        Positive,
        Setting(
            "L2 norm that every sample's gradient is clipped to in private training",
            "Privacy",
            "learning",
            "agreed",
            before=1.0,
        ),
    ] = 1.0
    sampling_rate: Annotated[
        float,
        Field(gt=0, le=1),
        Setting(
            "Chance of a record to be in a batch of private training, in place of batch_size",
            "Privacy",
            "learning",
            "agreed",
            before=0.25,
            metavar="SHARE",
            sets_pace=True,
        ),
    ] = 0.25
    noise_multiplier: Annotated[
        Positive | None,
        Setting(
            "Noise on the summed gradients, in clipping norms (as much as private_training asks for)",
            "Privacy",
            "learning",
            "agreed",
            before=None,
        ),
    ] = None
    accountant: Annotated[
        Accountant,
        Setting(
            "By which what training spends is counted: prv, or rdp, which counts more",
            "Privacy",
            "learning",
            "agreed",
            before="prv",
        ),
    ] = "prv"
    statistics_every: Annotated[
        AtLeastOne | None,
        Setting(
            "Rounds between two private releases of a client's hits (a fifth of all)",
            "Privacy",
            "learning",
            "agreed",
            before=None,
        ),
    ] = None
    canaries: Annotated[
        int,
        Field(ge=0),
        Setting(
            "Made-up records per client, by whose traces crad audit privacy tests private training",
            "Privacy",
            "learning",
            "simulated",
            before=0,
        ),
    ] = 0
    norm: Annotated[
        Norm | None,
        Setting(
            "Normalisation in built-in networks: batch or group (batch; group in private training, where a batch's "
            "statistics would mix records)",
            "Models",
            "learning",
            "agreed",
            before=None,
        ),
    ] = None
    local_loss: Annotated[
        LocalLoss | None,
        Setting(
            "Private loss: plain, or balanced by the client's own class prior (the method's)",
            "Training",
            "recipe",
            "agreed",
            before="plain",
            words={"balanced": "balanced loss", "plain": "plain loss"},
        ),
    ] = None
    evidence: Annotated[
        EvidenceSource | None,
        Setting(
            "What teachers are judged by: reported, own (counted on the student's shard) or pooled (the method's)",
            "Distillation",
            "recipe",
            "agreed",
            before="reported",
            is_of_teachers=True,
        ),
    ] = None
    filter: Annotated[
        FilterKind | None,
        Setting(
            "Who agrees: median, support, self-scaled, weighted-consensus, weighted-median, weighted (the rule's own)",
            "Distillation",
            "recipe",
            "agreed",
            before=None,
            is_of_teachers=True,
            words={"weighted-consensus": "weighted consensus", "weighted-median": "weighted median"},
        ),
    ] = None
    distill_augment: Annotated[
        DistillAugment | None,
        Setting(
            "Inputs on which student and teachers meet: same, mixup, strong, cutmix, crops, patches (the method's)",
            "Distillation",
            "recipe",
            "agreed",
            before="same",
            is_of_teachers=True,
            stored_as="matching",
            words={"mixup": "mixup", "strong": "strong inputs", "same": "same inputs"},
        ),
    ] = None
    teacher_prior: Annotated[
        TeacherPrior | None,
        Setting(
            "A teacher's own class shares, by its published counts: keep them in what it says, or remove them; not "
            "with a balanced loss, which has them out already (the method's)",
            "Distillation",
            "recipe",
            "agreed",
            before="keep",
            is_unsaid_before=True,
            is_of_teachers=True,
            words={"remove": "priors removed", "keep": "priors kept"},
        ),
    ] = None
    missing_weight: Annotated[
        NotNegative | None,
        Setting(
            "How much more a sample counts in the distillation, beyond 1, where its target is on classes that the "
            "client lacks (the method's)",
            "Distillation",
            "recipe",
            "agreed",
            before=0.0,
            is_unsaid_before=True,
            is_of_teachers=True,
        ),
    ] = None
    distill_schedule: Annotated[
        DistillSchedule | None,
        Setting(
            "Distillation weight over the planned rounds: constant, or rising to it (the method's)",
            "Distillation",
            "recipe",
            "agreed",
            before="constant",
            is_unsaid_before=True,
            is_of_teachers=True,
            words={"rising": "rising lambda", "constant": "constant lambda"},
        ),
    ] = None
    attack: Annotated[
        AttackKind | None,
        Setting(
            "What attackers do (simulation): noise, label-flip, label-flip-pairs, sign-flip, inflated, "
            "backdoor, free-rider, collude; honest: nothing, as a control",
            "Simulated attacks",
            "world",
            "simulated",
            before=None,
            is_of_teachers=True,
            words={None: "no attack"},
        ),
    ] = None
    attackers: Annotated[
        int,
        Field(ge=0),
        Setting(
            "Clients that attack, drawn by the seed",
            "Simulated attacks",
            "world",
            "simulated",
            before=0,
            is_of_teachers=True,
            words={0: ""},
        ),
    ] = 0
    eval_every: Annotated[
        AtLeastOne, Setting("Rounds between evaluations on the test sets", "Evaluation", "extent", "simulated")
    ] = 1
    metrics: Annotated[
        bool,
        Setting(
            "Measure more than accuracy, once, with the models that are reported: AUROC, macro F1 and others",
            "Evaluation",
            "execution",
            "simulated",
        ),
    ] = True
    committee: Annotated[
        bool,
        Setting("Measure also what all models know together, as one predictor", "Evaluation", "execution", "simulated"),
    ] = True
    committee_study: Annotated[
        bool,
        Setting(
            "Measure the committee under every built-in rule, with and without the members' priors",
            "Evaluation",
            "execution",
            "simulated",
        ),
    ] = False
    committee_rule: Annotated[
        str,
        Setting(
            "Rule by which the members of the committee are combined",
            "Evaluation",
            "extent",
            "simulated",
            before="support-all",
            metavar="RULE",
        ),
    ] = "support-all"
    committee_evidence: Annotated[
        EvidenceSource,
        Setting(
            "What members of the committee are judged by: reported (what they publish), own (counted on the asking "
            "client's validation half) or pooled (both)",
            "Evaluation",
            "execution",
            "simulated",
            before="reported",
            metavar="SOURCE",
        ),
    ] = "pooled"
    device: Annotated[Device, Setting("Where to compute", "Execution", "execution", "private")] = "auto"
    teacher_precision: Annotated[
        TeacherPrecision,
        Setting("Numbers in which teachers run; bf16 needs CUDA", "Execution", "learning", "simulated"),
    ] = "fp32"
    engine: Annotated[
        EngineKind,
        Setting(
            "Where clients run: in this process, in processes here, or on Ray", "Execution", "execution", "simulated"
        ),
    ] = "auto"
    workers: Annotated[
        Workers,
        Setting(
            "Processes, one client at a time each; auto: one per core or GPU, in short runs one",
            "Execution",
            "execution",
            "simulated",
            metavar="COUNT|auto",
            is_of_engine=True,
        ),
    ] = "auto"
    ray_address: Annotated[
        str | None,
        Setting(
            "Ray cluster to join with engine ray (start one here)",
            "Execution",
            "execution",
            "simulated",
            metavar="ADDRESS",
            is_of_engine=True,
        ),
    ] = None

    def __hash__(self) -> int:
        """Equal experiments hash alike; the method's settings are a dictionary, which has no hash of its own."""
        return hash((self.model_dump_json(exclude={"method_settings"}), frozenset(self.method_settings.items())))

    @property
    def recipe(self) -> Recipe:
        """Return how students learn here: what was set, over what the method stands for."""
        given = {name: getattr(self, name) for name in asdict(PUBLISHED)}
        return replace(
            RECIPES.get(self.method, PUBLISHED), **{name: value for name, value in given.items() if value is not None}
        )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (fault := contradiction(self)) is not None:
            raise ValueError(fault)
        return self
