"""Is asked for float32 and computes in bfloat16."""

from planted.wrapping import Planted, Wrapped

BACKEND = Planted("another_type", Wrapped, {"precision": "bf16.32"})
