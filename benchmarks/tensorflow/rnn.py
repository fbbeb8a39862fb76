"""Benchmark of one simple recurrent layer; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/rnn", __file__))
