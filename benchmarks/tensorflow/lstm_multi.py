"""Benchmark of stacked LSTM layers with a dense output; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/lstm_multi", __file__))
