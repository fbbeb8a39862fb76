"""Everything that one call of `train.py` asks for, as plain values that know no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermark.spec import Spec
from layermark.training.schedule import peak_rate


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One process of a job that a launcher started, or the only one there is."""

    count: int = 1
    index: int = 0
    on_host: int | None = None
    """How many of them share this host, if that is known."""
    local_replicas: int | None = None
    """Copies of the model in this process, if a launcher decides that."""
    shards: int | None = None
    """Devices that the launcher gives to a copy."""

    @property
    def launched(self) -> bool:
        """Whether a launcher started it."""
        return self.local_replicas is not None


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A complete and checked request. Names of fields are those of the options where there is one."""

    # The network
    model: str
    """The family: resnet, resnext, efficientnet or squeezenet."""
    spec: Spec
    """The network in training, one micro-batch at a time: workload and its options, runtime, device, the precision that
    really computes, execution, threads, seed, data and how they are loaded."""
    image_size: tuple[int, int]
    """Height and width of the pictures."""
    classes: int
    norm: str
    """batch, group, proxy, or none."""
    norm_groups: int
    norm_decay: float
    """Share of the old in running statistics."""
    stable_norm: bool
    bn_span: float | None
    """Batches that running statistics span."""

    # The data
    dataset: str
    """imagenet, cifar-10 or cifar-100."""
    epoch_pictures: int | None
    """Pictures of an epoch; None: as many as are found, times the percentage."""
    dataset_percentage: int
    pipeline_num_parallel: int
    mixup_alpha: float
    """0 is off."""
    cutmix_lambda: float
    """1 is off."""
    cutmix_version: int
    hostside_image_mixing: bool

    # How an update is divided
    accumulation: int
    """Micro-batches of one copy in an update."""
    replicas: int
    """Copies of the model in this process."""
    instance: Instance
    shards: int
    pipeline: bool
    pipeline_splits: tuple[str, ...]
    """Names at which stages begin; empty without a pipeline."""
    pipeline_schedule: str
    as_ranks: bool
    """Whether replicas and stages are processes of their own."""
    bucket_bytes: int
    """Gradients that wait before replicas begin to average them."""

    # The recipe
    optimiser: str
    """SGD, momentum, RMSprop or LARS."""
    momentum: float
    rmsprop_decay: float | None
    """None without RMSprop."""
    rmsprop_epsilon: float
    lars_epsilon: float
    lars_eeta: float
    lars_skip_list: tuple[str, ...]
    lars_weight_decay: float
    """0 without LARS."""
    base_exponent: float
    """N of the peak rate 2**N x global batch."""
    weight_decay: float
    """Factor of the weights in the gradient; 0 with LARS, which has its own."""
    loss_scaling: float
    label_smoothing: float
    variable_filter: tuple[str, ...]
    """Train only variables with one of these in their name; empty: all."""
    schedule: str
    """stepped, cosine, exponential or polynomial_decay_lr."""
    warmup_epochs: float
    """0 is none."""
    step_factor: float | None
    """Factor of the stepped schedule; None with another."""
    step_fractions: tuple[float, ...]
    """Shares of the run at which the stepped schedule drops."""
    decay_rate: float | None
    """Factor of the exponential schedule; None with another."""
    drops: int | None
    """Drops of the exponential schedule in the whole run."""
    poly_power: float | None
    """Power of the polynomial schedule; None with another."""
    poly_end_ratio: float | None
    poly_end_rate: float | None
    """The last rate itself, which wins over the ratio."""
    epochs: float | None
    """Length of the run; None if it is given in updates."""
    iterations: int | None
    """Length of the run in updates; None if it is given in epochs."""

    # The machine
    precision: str
    """Compute type . stored-weight type as it was asked for, which is what is printed; see `spec` for what is used."""
    stochastic_rounding: bool
    """As it was asked for; rounding is to nearest here."""
    recompute: bool
    batches_per_step: int
    """Most updates per host call."""
    seeded: bool
    """Whether a seed was asked for, so that two runs must be equal."""
    fp_exceptions: bool
    compile_only: bool
    dataset_benchmark: bool
    profile_folder: Path | None
    """Where a profile goes, if one is wanted."""

    # Checkpoints and validation
    ckpts_per_epoch: float
    """0 is never; below 1 there are several epochs from one to the next."""
    ckpt_epochs_offset: float
    """Epochs before the first checkpoint."""
    ckpt_all_instances: bool
    weight_avg_n: tuple[int, ...]
    """Means of the checkpoints of so many last epochs."""
    weight_avg_exp: tuple[float, ...]
    """Exponential means with these decays."""
    validation: bool
    """Whether a validation follows."""
    latency: bool
    """Whether its lines show the latency."""
    init_path: str | None
    restore_path: str | None

    # Logs
    logs: bool
    """Whether files are written at all."""
    log_dir: str
    logs_path: str | None
    """The folder of the run itself."""
    name_suffix: str | None
    logs_per_epoch: int
    """Lines in an epoch, if the length is given in epochs."""
    log_freq: int
    """Updates per line, if the length is given in updates."""
    log_all_instances: bool
    mlperf_logging: bool

    # The measurement
    budget_s: float | None
    store: str | None
    values: Mapping[str, Any]
    """Every option by name, for `arguments.json`."""
    recorded: Mapping[str, Any]
    """What was typed, for the result."""
    notes: tuple[str, ...]
    """What the user should be told."""

    @property
    def micro_batch(self) -> int:
        """Pictures that one copy of the model takes at once."""
        return self.spec.batch_size

    @property
    def mixes(self) -> bool:
        """Whether pictures are mixed."""
        return self.mixup_alpha > 0 or self.cutmix_lambda < 1

    @property
    def total_replicas(self) -> int:
        """Copies of the model in all processes."""
        return self.replicas * self.instance.count

    @property
    def global_batch(self) -> int:
        """Pictures of one update."""
        return self.micro_batch * self.accumulation * self.total_replicas

    @property
    def validation_batch(self) -> int:
        """Pictures that all copies take at once when they validate."""
        return self.micro_batch * self.total_replicas

    @property
    def peak_rate(self) -> float:
        """The highest rate of the schedule."""
        return peak_rate(self.base_exponent, self.global_batch)

    @property
    def steps_per_call(self) -> int:
        """What a host call adds to the step number: 1 with a pipeline, else the accumulation count."""
        return 1 if self.pipeline else self.accumulation

    @property
    def stages(self) -> int:
        """Stages that follow each other."""
        return self.shards if self.pipeline else 1
