"""What `train.py` takes where nothing is typed, by model, data set and optimiser."""

from __future__ import annotations

EPOCHS = {"resnet": (100, 160), "resnext": (100, 160), "efficientnet": (350, 300), "squeezenet": (100, 160)}
"""Default lengths on ImageNet and on CIFAR."""
EXPONENTS = {
    "resnet": {"SGD": -8, "momentum": -11},
    "resnext": {"SGD": -8, "momentum": -11},
    "efficientnet": {"SGD": -7, "momentum": -10, "RMSprop": -14},
}
"""Default N of the peak rate 2**N x global batch on ImageNet, by model and optimiser."""
SMALL_EXPONENT = -6
"""The same on CIFAR, for all of them."""
RMSPROP_EXPONENT = -14
"""Default N of EfficientNet's decay 1 - 2**N x global batch, which belongs to its default rate."""
WEIGHT_DECAYS = {"efficientnet": 1e-5}
WEIGHT_DECAY, SMALL_WEIGHT_DECAY = 1e-4, 1e-6
STEPS, SMALL_STEPS = (0.3, 0.6, 0.8, 0.9), (0.5, 0.75)
PARALLEL = 48
