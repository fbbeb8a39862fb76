"""Benchmark of Hamiltonian Monte Carlo steps; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow/hmc", __file__))
