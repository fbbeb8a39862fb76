"""The networks of the TensorFlow programs: from their options to a model of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from layermark import registry
from layermark.errors import UserError, unknown

Values = Mapping[str, Any]

GROUP_EPSILON = 1.53e-5
"""What the programs' library adds to the variance of a group."""


def network(values: Values) -> tuple[str, dict[str, Any]]:
    """The name of the model, and its options."""
    name, params = _FAMILIES[values["model"]](values)
    known = registry.modules("workloads")
    if name not in known:
        family = [each for each in known if each.startswith(values["model"])]
        raise unknown(f"--model-size {values['model_size']}: model", name, family)
    found = {"convention": "tensorflow", **params}
    if values["image_size"]:
        if values["dataset"] != "imagenet":
            raise UserError(f"--image-size {values['image_size']}: CIFAR's pictures are 32; leave it out")
        found["image_size"] = (values["image_size"], values["image_size"])
    return name, found


def classes_of(values: Values) -> dict[str, int]:
    """How many classes there are."""
    return {"classes": {"imagenet": 1000, "cifar-10": 10, "cifar-100": 100}[values["dataset"]]}


def _small(values: Values) -> bool:
    return bool(values["dataset"] != "imagenet")


def _resnet(values: Values) -> tuple[str, dict[str, Any]]:
    size = values["model_size"] or (20 if _small(values) else 18)
    return f"resnet{size}{'-cifar' * _small(values)}", _residual_norms(values)


def _resnext(values: Values) -> tuple[str, dict[str, Any]]:
    size = values["model_size"] or (11 if _small(values) else 14)
    # The short name of the 101 is the PyTorch program's, which is twice as wide.
    name = "resnext101-32x4d" if size == 101 else f"resnext{size}"
    own = {"convolution_groups": values["convolution_groups"], "group_dim": values["group_dim"]}
    name = f"resnext{size}-cifar" if _small(values) else name
    return name, {**own, "widenet": values["widenet"], **_residual_norms(values)}


def _efficientnet(values: Values) -> tuple[str, dict[str, Any]]:
    size = str(values["model_size"])
    word = f"B{size}" if size.isdigit() else "CIFAR" if _small(values) else size
    changed = {
        "dropout_rate": values["dropout_rate"],
        "width_coefficient": values["width_coefficient"],
        "depth_coefficient": values["depth_coefficient"],
    }
    params = {
        "squeeze_excite": not values["no_se"],
        "depth_divisor": values["depth_divisor"],
        "top_width": values["top_width"],
        "activation": "relu" if values["use_relu"] else "swish",
        "expand_ratio": values["expand_ratio"],
        "group_dim": values["group_dim"],
        "block_survival_prob": values["block_survival_prob"],
        "norm_eps": values["norm_epsilon"],
        "norm_momentum": 1 - values["BN_decay"],
        "norm_strided": True,
        "proxy_epsilon": values["proxy_epsilon"],
        **{name: value for name, value in changed.items() if value is not None},
        **_efficient_norm(values),
    }
    return f"efficientnet-{word.lower()}", params


def _efficient_norm(values: Values) -> dict[str, Any]:
    """Batch norms win if both are asked for; proxy norms are group norms with something after them."""
    if values["proxy_norm"]:
        return {"norm_type": "proxy", "norm_num_groups": values["groups"]}
    if values["batch_norm"]:
        return {"norm_type": "batch", "norm_num_groups": 1}
    return {"norm_type": "group", "norm_num_groups": values["groups"]}


def _residual_norms(values: Values) -> dict[str, Any]:
    """Group norms on ImageNet and batch norms on CIFAR, unless asked otherwise; group norms win if both are."""
    batch = not values["group_norm"] and (values["batch_norm"] or _small(values))
    return {
        "norm_type": "batch" if batch else "group",
        "norm_num_groups": values["groups"] or (16 if _small(values) else 32),
        "norm_strided": True,
        "norm_eps": 1e-5 if batch else GROUP_EPSILON,
        "norm_momentum": 1 - values["BN_decay"],
    }


def _squeezenet(values: Values) -> tuple[str, dict[str, Any]]:
    return "squeezenet", {}


_FAMILIES: Mapping[str, Callable[[Values], tuple[str, dict[str, Any]]]] = {
    "resnet": _resnet,
    "resnext": _resnext,
    "efficientnet": _efficientnet,
    "squeezenet": _squeezenet,
}
