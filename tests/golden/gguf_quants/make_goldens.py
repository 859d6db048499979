"""Writes gguf_quants.json: random blocks of each GGUF type and the floats that the `gguf` package reads from them.

usage: make_goldens.py > gguf_quants.json        needs numpy and gguf (0.19.0)
Codes are random bytes; the F16 scales are random, with zero, negative, subnormal and large ones among them.
"""
import json, sys
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

# type: (bytes of a block, elements, offsets of its F16 fields)
BLOCKS = {T.Q8_0: (34, 32, [0]), T.Q4_0: (18, 32, [0]), T.Q4_1: (20, 32, [0, 2]), T.Q5_0: (22, 32, [0]), T.Q5_1: (24, 32, [0, 2]),
          T.Q4_K: (144, 256, [0, 2]), T.Q5_K: (176, 256, [0, 2]), T.Q6_K: (210, 256, [208])}
SCALES = [0.0, -0.0123, 6e-8, 3.1e-5, 1.0, 517.0]


def main():
    rng = np.random.default_rng(20261201)
    out = {}
    for kind, (size, elements, fields) in BLOCKS.items():
        count = 8 if elements == 32 else 4
        data = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for i in range(count):
            for field in fields:
                scale = SCALES[i] if i < min(len(SCALES), count - 2) else rng.normal() * 0.02
                data[i, field:field + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        out[kind.name] = (data, dequantize(data, kind))
    for kind, dtype in ((T.F32, "<u4"), (T.F16, "<u2"), (T.BF16, "<u2")):
        bits = rng.integers(0, 1 << (8 * np.dtype(dtype).itemsize), 64, dtype=np.uint64).astype(dtype)
        if kind == T.F16:
            bits[(bits >> 10) & 31 == 31] ^= 0x4000          # no NaN: they compare equal to nothing
        elif kind == T.BF16:
            bits[(bits >> 7) & 255 == 255] ^= 0x4000
        else:
            bits[(bits >> 23) & 255 == 255] ^= 0x40000000
        data = np.frombuffer(bits.tobytes(), np.uint8)[None]
        out[kind.name] = (data, data.view("<f4") if kind == T.F32 else dequantize(data, kind))
    json.dump({name: {"bytes": data.tobytes().hex(), "f32": np.ascontiguousarray(values, "<f4").tobytes().hex()}
               for name, (data, values) in out.items()}, sys.stdout, indent=0)


main()
