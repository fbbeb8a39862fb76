"""What the name of a parameter tells: `node/word`, and the word that the seed documents use for it."""

from __future__ import annotations

from collections.abc import Iterable

NORM_WORDS = ("scale", "shift")
STATISTIC_WORDS = ("mean", "variance")
# The documents' filters and skip lists are written in TensorFlow's words.
_TENSORFLOW = {"scale": "gamma", "shift": "beta", "mean": "moving_mean", "variance": "moving_variance"}


def word(name: str) -> str:
    """Return the last word of a parameter's name.

    >>> word("layer1/0/bn1/scale")
    'scale'
    """
    return name.rpartition("/")[2]


def tensorflow_name(name: str) -> str:
    """Return the name with TensorFlow's word for the parameter of a norm.

    >>> tensorflow_name("bn1/scale"), tensorflow_name("fc/bias")
    ('bn1/gamma', 'fc/bias')
    """
    node, slash, last = name.rpartition("/")
    return node + slash + _TENSORFLOW.get(last, last)


def holds(name: str, words: Iterable[str]) -> bool:
    """Return whether one of the words occurs in the name, in our words or in TensorFlow's."""
    spellings = (name, tensorflow_name(name))
    return any(each in spelling for each in words for spelling in spellings)


def is_statistic(name: str) -> bool:
    """Return whether this is a running statistic of a norm, which no gradient moves."""
    return word(name) in STATISTIC_WORDS


def is_decayed(name: str) -> bool:
    """Return whether weight decay pulls at it: at all but the scale, shift and statistics of norms.

    >>> [each for each in ("conv/weight", "bn/scale", "bn/mean", "fc/bias", "bn/proxy_scale") if is_decayed(each)]
    ['conv/weight', 'fc/bias', 'bn/proxy_scale']
    """
    return word(name) not in NORM_WORDS + STATISTIC_WORDS
