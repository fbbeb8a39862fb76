"""Benchmark of grouped convolutions; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/grouped_conv", __file__))
