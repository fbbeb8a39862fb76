"""What hand-written loops reached before, on a machine with two AVX-512 cores: items/s, fp32, two threads.

They are medians of short loops, one process each, on a shared machine: good to 15 %, and only as ratios to ONNX
Runtime's. Where a runtime had several figures the best stands here, except for those of programs that a
compiler had cut down. Grouped convolutions count pictures through all ten.
"""

INFERENCE = {
    "onnxruntime": {
        "dense": 103_900, "conv": 32.8, "grouped_conv": 1976, "rnn": 27_800, "gru": 20_700, "lstm": 15_800,
        "lstm_multi": 172,
    },
    "openvino": {
        "dense": 62_800, "conv": 10.1, "grouped_conv": 1210, "rnn": 15_100, "gru": 15_000, "lstm": 11_200,
        "lstm_multi": 188,
    },
    "torch": {
        "dense": 56_400, "conv": 17.2, "grouped_conv": 527, "rnn": 10_100, "gru": 5060, "lstm": 4250,
        "lstm_multi": 168,
    },
    "tensorflow": {"dense": 26_900, "conv": 15.0, "grouped_conv": 418, "lstm": 2780, "lstm_multi": 49},
    "jax": {
        "dense": 38_000, "conv": 9.6, "grouped_conv": 173, "rnn": 28_400, "gru": 10_900, "lstm": 9200,
        "lstm_multi": 79,
    },
}  # fmt: skip
TRAINING = {
    "torch": {"dense": 13_600, "conv": 2.0, "grouped_conv": 148, "lstm": 890, "lstm_multi": 52},
    "tensorflow": {"dense": 8800, "conv": 3.8, "grouped_conv": 123, "lstm": 590, "lstm_multi": 4},
    "jax": {"dense": 8400, "conv": 2.0, "grouped_conv": 8.5, "lstm": 1500, "lstm_multi": 23},
}


def share_of_onnxruntime(runtime, workload, mode):
    """The rate of a runtime over that of ONNX Runtime's inference, as it was; None where nobody looked."""
    figures = (TRAINING if mode == "train" else INFERENCE).get(runtime, {})
    return figures[workload] / INFERENCE["onnxruntime"][workload] if workload in figures else None
