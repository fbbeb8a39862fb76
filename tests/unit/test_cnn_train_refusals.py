"""Combinations of options that cannot be trained: each is refused in one line."""

import pytest

from layermark.errors import UserError
from layermark.seeds.cnns.train_opening import arguments
from layermark.seeds.cnns.train_request import Instance

from .train_commands import LOADED, SMALL, TINY, read

STAGES = f"{SMALL} --model-size 14"
FOUR = f"{STAGES} --pipeline --shards 4 --pipeline-splits b1/0/relu b2/0/relu b3/0/relu"
WRONG = {
    "pipeline of one shard": (f"{STAGES} --pipeline", "--pipeline needs several shards"),
    "fewer splits than shards": (
        f"{STAGES} --pipeline --shards 3 --pipeline-splits b2/0/relu --gradient-accumulation-count 8",
        "1 names for 3 shards, expected 2; possible: b1/0/relu",
    ),
    "unknown split": (
        f"{STAGES} --pipeline --shards 2 --pipeline-splits b9/0/relu --gradient-accumulation-count 8",
        "unknown split 'b9/0/relu'",
    ),
    "accumulation below stages": (
        f"{STAGES} --pipeline --shards 2 --pipeline-splits b2/0/relu --gradient-accumulation-count 1",
        "give at least 2",
    ),
    "a schedule of two stages in a process": (
        f"{STAGES} --pipeline --shards 2 --pipeline-splits b2/0/relu --gradient-accumulation-count 8 "
        "--pipeline-schedule ZBVZeroBubble --stages-as-processes",
        "cut the network into 4, 6, ... stages",
    ),
    "accumulation that is no whole rounds": (
        f"{FOUR} --gradient-accumulation-count 5 --pipeline-schedule Interleaved1F1B --stages-as-processes",
        "works in rounds of 2 micro-batches; set --gradient-accumulation-count 4",
    ),
    "unknown order of stages": (f"{FOUR} --pipeline-schedule Grouping", "Interleaved1F1B"),
    "more stages than pieces": (
        f"{STAGES} --pipeline --shards 30 --pipeline-splits auto --gradient-accumulation-count 30",
        "--pipeline-splits auto: 30 stages, and the network can be cut into",
    ),
    "memory proportions": (f"{STAGES} --available-memory-proportion 0.1 0.2", "2 values"),
    "memory proportions of a pipeline": (
        f"{STAGES} --pipeline --shards 2 --pipeline-splits b2/0/relu --gradient-accumulation-count 8 "
        "--available-memory-proportion 0.1 0.2 0.3",
        "two per shard (4)",
    ),
    "averages without checkpoints": (f"{TINY} --weight-avg-exp 0.9 --ckpts-per-epoch 0", "--ckpts-per-epoch 0 writes"),
    "mean without checkpoints": (f"{TINY} --weight-avg-N 3 --no-logs", "--no-logs writes none"),
    "average that is none": (f"{TINY} --weight-avg-exp 1.5", "between 0 and 1"),
    "mixup of one": (
        f"{LOADED} --batch-size 1 --mixup-alpha 0.2",
        "no other picture to mix with",
    ),
    "cutmix of one": (
        f"{LOADED} --batch-size 1 --cutmix-lambda 0.5",
        "--cutmix-lambda: --batch-size 1",
    ),
    "negative mixup": (
        "--data-dir {data} --dataset imagenet --image-size 32 --mixup-alpha -1",
        "--mixup-alpha -1: expected 0",
    ),
    "RMSprop without a rate": (f"{SMALL} --optimiser RMSprop", "resnet has no default rate for it"),
    "LARS without a rate": (f"{SMALL} --optimiser LARS", "give --base-learning-rate N"),
    "LARS on EfficientNet": (f"--model efficientnet {SMALL} --optimiser LARS", "no default rate"),
    "SqueezeNet without a rate": (f"--model squeezenet {SMALL}", "squeezenet has no default rate"),
    "RMSprop without a decay": (f"{SMALL} --optimiser RMSprop --base-learning-rate -8", "give --rmsprop-decay X"),
    "RMSprop with two decays": (
        f"{SMALL} --optimiser RMSprop --rmsprop-decay 0.9 --rmsprop-base-decay-exp -9",
        "exclude each other",
    ),
    "a decay below zero": (
        f"--model efficientnet {SMALL} --optimiser RMSprop --batch-size 4 --gradient-accumulation-count 8192",
        "1 - 2**-14 x 32768 = -1: expected a number between 0 and 1",
    ),
    "exponential without a rate": (f"{SMALL} --lr-schedule exponential", "give --lr-decay-rate X and --lr-drops N"),
    "a filter that trains nothing": (f"{TINY} --variable-filter bert", "no weight has one of these in its name; names"),
    "two lengths": (f"{TINY} --epochs 2 --iterations 9", "--epochs and --iterations exclude each other"),
    "two batch sizes": (f"{TINY} --batch-size 2 --micro-batch-size 3", "give one of them"),
    "two intervals": (f"{TINY} --ckpts-per-epoch 2 --epochs-per-ckpt 3", "exclude each other"),
    "two kinds of data": (f"{TINY} --synthetic-data", "exclude each other"),
    "made-up data of no data set": ("--generated-data", "--generated-data needs --dataset"),
    "unknown model": (f"--model vgg {SMALL}", "unknown model 'vgg'"),
    "unknown size": (f"{SMALL} --model-size 51", "resnet51"),
    "unknown schedule": (f"{SMALL} --lr-schedule linear", "unknown --lr-schedule 'linear'"),
    "an option of another model": (f"{SMALL} --group-dim 16", "unrecognized arguments: --group-dim"),
    "an option of another schedule": (f"{SMALL} --lr-drops 3", "unrecognized arguments: --lr-drops"),
    "an option of validation": (f"{SMALL} --repeat 3", "unrecognized arguments: --repeat"),
    "unknown config": ("--config mk3", "unknown config in configs.yml 'mk3'"),
    "momentum": (f"{TINY} --optimiser momentum --momentum 1", "from 0 to below 1"),
    "weight decay": (f"{TINY} --weight-decay -1", "--weight-decay -1: expected 0 or more"),
    "fractions": (f"{TINY} --learning-rate-schedule 0.5,2", "such as 0.5,0.75"),
    "epoch size": (f"{TINY} --epoch-size some", "--epoch-size some: expected a whole number"),
    "no checkpoint to begin with": (f"{TINY} --init-path nowhere", "--init-path nowhere: no such file"),
    "no run to go on with": (f"{TINY} --restore-path nowhere", "cannot read"),
    "CIFAR of another size": (f"{TINY} --image-size 64", "CIFAR's pictures are 32"),
    "no such folder": ("--data-dir nowhere --dataset imagenet", "no such folder"),
}


@pytest.mark.parametrize(("argv", "expected"), WRONG.values(), ids=WRONG)
def test_a_wrong_combination_is_one_line(train_set, argv, expected):
    with pytest.raises(UserError) as error:
        read(argv.format(data=train_set))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


LAUNCHED = Instance(count=4, local_replicas=2, shards=1)
WRONG_LAUNCHED = {
    "replicas": (f"{TINY} --no-validation --replicas 3", "poprun gives each instance 2"),
    "shards": (f"{TINY} --no-validation --shards 2", "--ipus-per-replica 1; they must be equal"),
    "validation": (TINY, "add --no-validation"),
}


@pytest.mark.parametrize(("argv", "expected"), WRONG_LAUNCHED.values(), ids=WRONG_LAUNCHED)
def test_what_a_launcher_decided_is_not_contradicted(argv, expected):
    with pytest.raises(UserError, match=expected):
        read(argv, instance=LAUNCHED)


def test_replicas_come_from_the_launcher():
    request = read(f"{TINY} --no-validation --batch-size 1 --gradient-accumulation-count 10", instance=LAUNCHED)
    assert (request.replicas, request.total_replicas, request.global_batch) == (2, 8, 80)
    assert arguments(request)["replicas"] == 2
