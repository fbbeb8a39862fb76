"""Benchmark of one 2-D convolution; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("popart/conv", __file__))
