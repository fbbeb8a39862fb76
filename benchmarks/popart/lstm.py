"""Benchmark of one LSTM layer; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("popart/lstm", __file__))
