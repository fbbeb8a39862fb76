"""`python -m layermark` is the same as `layermark`."""

import sys

from layermark.cli import main

if __name__ == "__main__":
    sys.exit(main())
