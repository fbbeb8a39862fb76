"""The vocabulary of operations that graphs are written in.

How scalar operations are counted, everywhere in this package:

- A contraction counts two per multiply-add. Adding two contractions into one sum is part of them.
- Outside contractions every addition, multiplication, division, comparison and elementary function
  (exponential, logarithm, square root, tanh, sigmoid) of one element counts one.
- Reducing n numbers counts n; the division of a mean counts one more. Windows count in full, padding included.
- Going backward, values made on the way forward are kept, not made again; no gradient is made that nobody needs.
- Moving, selecting, padding and casting count nothing, nor does what parameters alone determine outside training.
- The optimiser's step counts two per trainable element. Gradients that meet at one node count their sums.
"""

from layermark.ops.base import Op, Parameter
from layermark.ops.linear import Conv2d, Dense, Padding, Size, same_padding
from layermark.ops.loss import (
    CrossEntropy,
    Loss,
    Mean,
    MeanSquaredError,
    NegativeLogLikelihood,
    Softmax,
    SumSquaredError,
)
from layermark.ops.mixing import MixPictures
from layermark.ops.normalise import PROXY_EPSILON, PROXY_POINTS, Norm
from layermark.ops.pointwise import (
    ACTIVATIONS,
    Activation,
    Add,
    Concat,
    Dropout,
    Flatten,
    Multiply,
    Normalise,
    StochasticDepth,
)
from layermark.ops.recurrent import FORMS, RESETS, Recurrent, TakeLast
from layermark.ops.source import Input
from layermark.ops.spatial import GlobalPool, Pad, Pool, Subsample

__all__ = [
    "ACTIVATIONS",
    "FORMS",
    "PROXY_EPSILON",
    "PROXY_POINTS",
    "RESETS",
    "Activation",
    "Add",
    "Concat",
    "Conv2d",
    "CrossEntropy",
    "Dense",
    "Dropout",
    "Flatten",
    "GlobalPool",
    "Input",
    "Loss",
    "Mean",
    "MeanSquaredError",
    "MixPictures",
    "Multiply",
    "NegativeLogLikelihood",
    "Norm",
    "Normalise",
    "Op",
    "Pad",
    "Padding",
    "Parameter",
    "Pool",
    "Recurrent",
    "Size",
    "Softmax",
    "StochasticDepth",
    "Subsample",
    "SumSquaredError",
    "TakeLast",
    "same_padding",
]
