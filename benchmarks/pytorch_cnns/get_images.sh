#!/bin/sh
# Fills images/ with sample photographs. Needs no network; says where they come from.
exec "${PYTHON:-python3}" -m layermark data images "${1:-images}"
