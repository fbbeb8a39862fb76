"""Benchmark of one GRU layer; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/gru", __file__))
