"""Training of CNN models; `--help` lists the options."""

import sys

from layermark.seeds import main

if __name__ == "__main__":
    sys.exit(main("tensorflow_cnns/train", __file__))
