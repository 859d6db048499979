#!/usr/bin/env python3
"""Writes vectors.txt: block keys by hashlib, from the specification in common/block_key.h alone.

One case is lines of `name value`; an empty line ends it. Strings are hex of their bytes.
Run: python3 make_vectors.py > vectors.txt
"""
import hashlib
import struct


def field(tag, value):
    return bytes([tag]) + struct.pack("<I", len(value)) + value


def root_key(model_digest, kv_layout, numerics, adapter, salt):
    message = b"quire.block.v1"
    for tag, value in enumerate((model_digest, kv_layout, numerics, adapter, salt), start=1):
        message += field(tag, value)
    return hashlib.sha256(message).digest()


def chain(root, variant, tokens, block_size):
    keys, parent = [], root
    for begin in range(0, len(tokens) - block_size + 1, block_size):
        block = tokens[begin:begin + block_size]
        parent = hashlib.sha256(parent + field(6, variant) + struct.pack(f"<{len(block)}I", *block)).digest()
        keys.append(parent)
    return keys


def case(name, adapter=b"", salt=b"", variant=b"", tokens=(), block_size=16, model=b"\x11" * 32,
         kv_layout=b"lanes32-bf16-b16-h8x128-l28", numerics=b"cpu-avx2-bf16"):
    root = root_key(model, kv_layout, numerics, adapter, salt)
    print("case", name)
    for key, value in (("model_digest", model), ("kv_layout", kv_layout), ("numerics", numerics),
                       ("adapter", adapter), ("salt", salt), ("variant", variant)):
        print(key, value.hex() or "-")
    print("block_size", block_size)
    print("tokens", ",".join(map(str, tokens)) or "-")
    print("root", root.hex())
    for key in chain(root, variant, list(tokens), block_size):
        print("key", key.hex())
    print()


def ramp(a, n):
    return [(a + 31 * i) % 256 for i in range(n)]


case("plain", tokens=ramp(2, 64))
case("no_full_block", tokens=ramp(2, 15))
case("no_tokens")
case("partial_tail", tokens=ramp(3, 47))
case("block_32", tokens=ramp(2, 70), block_size=32, kv_layout=b"lanes32-fp8-b32-h8x128-l28")
case("block_1", tokens=ramp(7, 3), block_size=1)
case("large_ids", tokens=[0, 151935, 2**31 - 1, 65536] * 4)
case("empty_fields", model=b"", kv_layout=b"", numerics=b"", tokens=ramp(2, 16))
case("zero_bytes_in_fields", model=bytes(32), adapter=b"\0", salt=b"\0\0", tokens=ramp(2, 16))
# The same letters on other sides of a border: all different.
case("salt_ab_adapter_c", salt=b"ab", adapter=b"c", tokens=ramp(2, 32))
case("salt_a_adapter_bc", salt=b"a", adapter=b"bc", tokens=ramp(2, 32))
case("adapter_abc", adapter=b"abc", tokens=ramp(2, 32))
case("salt_abc", salt=b"abc", tokens=ramp(2, 32))
case("variant", variant=b"topk=64", tokens=ramp(2, 32))
case("variant_long", variant=bytes(range(256)) * 3, tokens=ramp(2, 32))
# A variant that spells the first token, with one token less: the length keeps them apart.
case("variant_like_a_token", variant=struct.pack("<I", 2), tokens=ramp(33, 15), block_size=15)
