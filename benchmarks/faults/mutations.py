"""Files as a stranger, a bad disk or an editor would leave them: each mutation takes the file's bytes and gives others, with a name."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**31 - 1, 2**63, -(2**63), 10**30, 10**8, 0.0, -0.0, 0.5, 1e308, -1e-308, 1e39, 5e-324,
    "", " ", "x", "nan", "inf", "1", "cpu", "cuda:99", "auto", "../../../etc/passwd", "/", "~",
    "\x00", "a\nb", "\u2028", "\ud7ff", "é" * 50, "x" * 3000,
    [], {}, [[]], [None], [0], [-1], [1, 2, 3], ["x"], {"": 0}, {"a/b": 1}, {"$tensor": "float32[4]"}, {"$float": "nan"}, {"$float": 1},
    [[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]], list(range(500)), {f"k{i}": i for i in range(200)},
)  # fmt: skip

# More of these is more work, not a fault: a run that is told to play a billion episodes plays them.
WORK = {"eval_episodes", "gradient_steps", "update_epochs", "total_timesteps", "schedule_timesteps", "train_frequency", "num_steps"}

Mutation = tuple[str, bytes]


def mutate_text(data: bytes, rng: random.Random) -> Mutation:
    """Bytes changed without a thought of what they mean."""
    at = rng.randrange(len(data)) if data else 0
    kind = rng.choice(("flip", "flip", "cut", "empty", "insert", "delete", "double", "utf8", "nul", "bom", "swap", "spaces"))
    if kind == "flip":
        return f"flip bit of byte {at}", flipped(data, at, rng)
    changed = {
        "cut": data[:at],
        "empty": b"",
        "insert": data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[at:],
        "delete": data[:at] + data[at + rng.randrange(1, 40) :],
        "double": data + data,
        "utf8": data[:at] + b"\xff\xfe\xc3(" + data[at:],
        "nul": data[:at] + b"\0" + data[at + 1 :],
        "bom": b"\xef\xbb\xbf" + data,
        "swap": data[at:] + data[:at],
        "spaces": b" " * 2000 + data,
    }
    return f"{kind} at {at}", changed[kind]


def flipped(data: bytes, at: int, rng: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if data else b"\x01"


def mutate_tree(tree: Any, rng: random.Random) -> tuple[str, Any]:
    """One place of a tree of plain values changed: another value, a key less, more, or under another name."""
    tree = copy.deepcopy(tree)
    nodes = [(holder, key, path) for holder, key, path in _places(tree, "")]
    if not nodes:
        return "replaced", rng.choice(ODD)
    # Deep states have thousands of places; what is near the root decides more.
    depth = rng.choice((1, 1, 2, 2, 3, 99))
    nodes = [node for node in nodes if node[2].count(".") <= depth] or nodes
    holder, key, path = rng.choice(nodes)
    kind = rng.choice(("value", "value", "value", "value", "delete", "rename", "add", "type"))
    if kind == "delete":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[rng.choice((f"{key}_", f"{key}"[:-1], str(key).upper(), ""))] = holder.pop(key)
    elif kind == "add":
        if isinstance(holder, dict):
            holder[rng.choice(("extra", "", "a.b", "__proto__", "x" * 300, "\x00"))] = rng.choice(ODD)
        else:
            holder.insert(rng.randrange(len(holder) + 1), rng.choice(ODD))
    elif kind == "type":
        old = holder[key]
        holder[key] = rng.choice((str(old)[:200], [old], {"value": old}, float(old) if isinstance(old, int) else 0))
    else:
        value = rng.choice(ODD)
        if str(key) in WORK and isinstance(value, (int, float)) and abs(value) > 100:
            value = -1
        if key == "buffer_capacity" and isinstance(value, (int, float)) and 10**6 < value < 10**15:
            value = 10**15  # some machines have room for less, and may allocate it
        holder[key] = value
        return f"{path} = {value!r:.40}", tree
    return f"{kind} {path}", tree


def _places(node: Any, path: str) -> list[tuple[Any, Any, str]]:
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    found = []
    for key, value in items[:200]:
        where = f"{path}.{key}" if path else str(key)
        found.append((node, key, where))
        found.extend(_places(value, where))
    return found


def mutate_json(data: bytes, rng: random.Random) -> Mutation:
    if rng.random() < 0.25:
        return mutate_text(data, rng)
    if rng.random() < 0.08:
        return rng.choice(JSON_BOMBS)
    name, tree = mutate_tree(json.loads(data), rng)
    return name, json.dumps(tree, indent=1).encode("utf-8", "surrogatepass")


def mutate_lines(data: bytes, rng: random.Random) -> Mutation:
    """metrics.jsonl: one line changed, or all of it."""
    if rng.random() < 0.3:
        return mutate_text(data, rng)
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    name, changed = mutate_json(lines[at], rng)
    lines[at] = changed.replace(b"\n", b" ") + b"\n"
    return f"line {at + 1}: {name}", b"".join(lines)


def mutate_yaml(data: bytes, rng: random.Random) -> Mutation:
    if rng.random() < 0.25:
        return mutate_text(data, rng)
    if rng.random() < 0.25:
        name, text = rng.choice(YAML_BOMBS)
        key = rng.choice(("algo_kwargs", "env_kwargs", "tags", "trackers", "seed", "env_id", "hidden_sizes", "extra"))
        kept = [line for line in data.decode().splitlines() if not line.startswith((f"{key}:", " ", "-"))]
        return f"{name} as {key}", "\n".join([*kept, text.replace("KEY", key), ""]).encode()
    name, tree = mutate_tree(yaml.safe_load(data), rng)
    try:
        return name, yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    except yaml.YAMLError:
        return mutate_text(data, rng)


def mutate_tensors(data: bytes, rng: random.Random) -> Mutation:
    """A safetensors file: its length field, its header as JSON, its payload."""
    (length,) = struct.unpack("<Q", data[:8])
    header, payload = data[8 : 8 + length], data[8 + length :]
    kind = rng.choice(("payload", "payload", "payload", "length", "header", "header", "header bytes", "cut", "more", "empty"))
    if kind == "payload" and payload:
        at = rng.randrange(len(payload))
        return f"payload flip at {at}", data[: 8 + length] + flipped(payload, at, rng)
    if kind == "length":
        other = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, len(data)))
        return f"header length {other}", struct.pack("<Q", other % 2**64) + data[8:]
    if kind == "header":
        name, tree = mutate_tree(json.loads(header), rng)
        text = json.dumps(tree).encode("utf-8", "surrogatepass")
        text += b" " * (-len(text) % 8)
        return f"header {name}", struct.pack("<Q", len(text)) + text + payload
    if kind == "header bytes":
        at = rng.randrange(length)
        return f"header flip at {at}", data[:8] + flipped(header, at, rng) + payload
    if kind == "cut":
        at = rng.randrange(len(data))
        return f"cut at {at}", data[:at]
    return ("more", data + b"\0" * rng.randrange(1, 64)) if kind == "more" else ("empty", b"")


def in_place_of(path: Path, rng: random.Random) -> str:
    """Puts something that is no regular file where `path` was."""
    path.unlink()
    kinds = ["missing", "folder", "/dev/null", "loop", "dangling"]
    if path.name != "observations.jsonl":  # which may well come from a pipe without end
        kinds += ["fifo", "/dev/zero"]
        kinds += [] if path.suffix == ".safetensors" else ["huge"]  # tensors may be
    kind = rng.choice(kinds)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("/dev/zero", "/dev/null"):
        path.symlink_to(kind)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to(path.parent / "nothing-here")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(8 << 30)
    return kind


_DEEP = 100_000
JSON_BOMBS: tuple[Mutation, ...] = (
    ("deep lists", b"[" * _DEEP + b"]" * _DEEP),
    ("deep mappings", b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    ("long number", b"1" * 10_000),
    ("NaN", b"NaN"),
    ("key twice", b'{"step": 1, "step": 2}'),
    ("bare", b'"text"'),
    ("surrogate", b'{"step": "\\ud800"}'),
    ("long string", b'"' + b"x" * 1_000_000 + b'"'),
)
_NINE = ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]
_MERGED = ["m0: &m0 {a: 1}", *(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 9))]
YAML_BOMBS: tuple[tuple[str, str], ...] = (
    ("aliases", "\n".join([*_NINE, "KEY: *a9"])),
    ("aliases inside", f"KEY: {{{', '.join(_NINE)}}}"),
    ("merge keys", "\n".join([*_MERGED, "KEY: *m8"])),
    ("itself", "KEY: &self [*self]"),
    ("itself as a mapping", "KEY: &self {a: *self}"),
    ("deep", "KEY: " + "[" * 3000 + "]" * 3000),
    ("null key", "KEY: {null: 1, ~: 2}"),
    ("null at the top", "null: 1\nKEY: 3"),
    ("number as key", "1: 2\nKEY: 3"),
    ("list as key", "? [a, b]\n: 1\nKEY: 2"),
    ("mapping as key", "? {a: b}\n: 1"),
    ("tag", "KEY: !!python/object/apply:os.system ['true']"),
    ("tag of ours", "KEY: !thing {a: 1}"),
    ("nul", "KEY: \"a\\0b\""),
    ("date", "KEY: 2024-01-01"),
    ("no date", "KEY: 2024-99-99"),
    ("binary", "KEY: !!binary aGVsbG8="),
    ("set", "KEY: !!set {a, b}"),
    ("base 60", "KEY: 190:20:30"),
    ("long number", "KEY: " + "9" * 6000),
    ("documents", "---\nKEY: 1\n---\nKEY: 2"),
    ("directive", "%YAML 9.9\n---\nKEY: 1"),
    ("unknown alias", "KEY: *nothing"),
    ("twice", "KEY: 1\nKEY: 2"),
    ("tab", "KEY:\n\t- 1"),
    ("float", "KEY: .nan"),
    ("infinity", "KEY: -.inf"),
)  # fmt: skip

Mutate = Callable[[bytes, random.Random], Mutation]
