"""Benchmark of one dense layer; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/dense", __file__))
