"""`python -m layermark.backends.openvino.quantiser FOLDER`: NNCF's post-training quantisation, in its own process."""

from __future__ import annotations

import sys
from pathlib import Path

import nncf
import openvino
from openvino.passes import ConstantFolding, Manager

from layermark.backends._onnx import quantised


def main(folder: Path) -> None:
    """Quantise the model in a folder; the mixed preset lets activations that are not symmetric have a zero point.

    The weights of grouped convolutions are reshaped constants, which stay in floats unless they are folded first.
    """
    model = openvino.Core().read_model(folder / quantised.MODEL)
    passes = Manager()
    passes.register_pass(ConstantFolding())
    passes.run_passes(model)
    feeds = list(quantised.feeds_in(folder))
    made = nncf.quantize(model, nncf.Dataset(feeds), subset_size=len(feeds), preset=nncf.QuantizationPreset.MIXED)
    openvino.save_model(made, (folder / quantised.QUANTISED).with_suffix(".xml"), compress_to_fp16=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
