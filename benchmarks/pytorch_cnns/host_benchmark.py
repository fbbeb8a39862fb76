"""The input pipeline of the PyTorch programs alone; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("pytorch_cnns/host_benchmark", __file__))
