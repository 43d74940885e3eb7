"""A policy in an ONNX file, run by onnxruntime. Such a file may be a stranger's: it holds no code, and what it says is checked."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from rl_training.envs.masks import choice_sizes
from rl_training.errors import CheckpointError, UserError
from rl_training.exchange.acting_module import STATE_INPUTS
from rl_training.exchange.raw_observations import PARTS, Part, part_of
from rl_training.experiment import explain
from rl_training.experiment.files import parse_json, read_bytes, reason
from rl_training.experiment.saved_spaces import MAX_ELEMENTS, require_saved_spaces
from rl_training.experiment.state_files import join_state, split_state
from rl_training.models.distributions import make_distribution
from rl_training.runtime.answers import Wrap, answers
from rl_training.runtime.behaviour import allowed_outputs
from rl_training.runtime.policy import read_action_masks, read_frame
from rl_training.types import Array

FORMAT = 2
"""Of the metadata: a reader of another number does not know what the names mean."""

PREVIOUS = ("previous_action", "previous_reward")
MAX_BYTES = 1 << 30
MAX_STATE = 10**7  # numbers of one part of a state
MAX_METADATA = 1 << 20  # characters of one entry
_KEYS = ("format", "row", "env_id", "step", "version", "commit", "spaces", "observation", "wrappers")
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


def require_extra(*packages: str) -> None:
    """Raises UserError where a package of the extra `export` is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"ONNX needs the package {package}: pip install 'rl-training[export]'")


def metadata_text(about: Mapping[str, Any]) -> dict[str, str]:
    """What a file says of its policy, as ONNX keeps it: strings by name. Whatever is no string is JSON, with bounds as in a manifest."""
    plain, _ = split_state({"format": FORMAT, **about})
    return {key: value if isinstance(value, str) else json.dumps(value, allow_nan=False) for key, value in plain.items()}


class OnnxPolicy:
    """The greedy policy in `content`, the bytes of the ONNX file `source`; the recurrent state goes in and comes out."""

    def __init__(self, content: bytes, *, source: str) -> None:
        require_extra("onnx", "onnxruntime")
        import onnxruntime

        _require_plain(content, source)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong is said in one line, by us
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class
            raise UserError(f"{source}: onnxruntime cannot run it ({_short(error)})") from None
        self.source = source
        self.metadata = _read_metadata(self._session.get_modelmeta().custom_metadata_map, source)
        spaces = self.metadata["spaces"]
        self.action: dict[str, Any] = spaces["action"]
        self.parts: tuple[Part, ...] = self.metadata["observation"]
        self.frame_stack: int = spaces.get("frame_stack", 1)
        self._names = [output.name for output in self._session.get_outputs()]
        self._state_shapes = self._checked_inputs()
        inputs = {given.name for given in self._session.get_inputs()}
        self._masked, self.reads_previous = "action_mask" in inputs, "previous_action" in inputs
        self._distribution = make_distribution(self.action) if {"logits", "mean"} & set(self._names) else None
        self._chosen_by = ["values"] if self._distribution is None else list(self._distribution.parameters)
        missing = {"action", "values", *self._chosen_by, *(f"next_{name}" for name in self._state_shapes)} - set(self._names)
        if missing:
            raise UserError(f"{source}: has no output {min(missing)}")

    @classmethod
    def load(cls, path: str | Path) -> OnnxPolicy:
        """The policy in the file `path`: a regular file of at most a gigabyte."""
        try:
            content = read_bytes(Path(path), limit=MAX_BYTES)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)})") from None
        return cls(content, source=str(path))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name for inputs by name, each with the batch as its first axis (of a state, the second)."""
        try:
            return dict(zip(self._names, self._session.run(self._names, dict(inputs)), strict=True))
        except Exception as error:  # as above: its errors have no common class
            raise UserError(f"{self.source}: onnxruntime failed ({_short(error)})") from None

    def initial_state(self, batch_size: int) -> tuple[Array, ...]:
        return tuple(np.zeros((layers, batch_size, size), np.float32) for layers, size in self._state_shapes.values())

    def one_of_stack(self, obs: Any) -> Array | None:
        """As `Policy.one_of_stack`."""
        return None if self.frame_stack == 1 else read_frame(obs, self.parts[0].shape[1:], self.parts[0].dtype)

    def answer(
        self, obs: Any, state: Any = None, episode_start: Any = None, action_mask: Any = None, *, previous: Any = None
    ) -> tuple[dict[str, Any], tuple[Array, ...]]:
        """The action for one observation and what it was chosen by, as `Policy.answer` gives them, and the state carried on."""
        read, masks = self._read(obs), read_action_masks(action_mask, self.action, ())
        inputs = {**read, **dict(zip(self._state_shapes, self.initial_state(1) if state is None else state, strict=True))}
        if self._state_shapes:
            starts = state is None or (episode_start is not None and bool(np.all(episode_start)))
            inputs["episode_start"] = np.array([starts])
        if self.reads_previous:
            led = (np.zeros(1), np.zeros(1)) if previous is None else previous
            inputs |= {"previous_action": np.asarray(led[0], np.int64), "previous_reward": np.asarray(led[1], np.float32)}
        if self._masked:
            inputs["action_mask"] = np.ones((1, sum(choice_sizes(self.action))), bool) if masks is None else masks
        elif masks is not None:
            raise UserError("has an action_mask, and this policy takes none: it was trained without")
        outputs = self.run(inputs)
        chosen_by = self._one_row(outputs)
        action = outputs["action"][0].tolist()
        if self._distribution is None:
            answer = {"action": action, "q_values": chosen_by[0].tolist()}
        else:
            answer = {"action": action, **self._distribution.describe(allowed_outputs(chosen_by, masks)[0])}
        if not all(np.isfinite(value).all() for value in answer.values()):
            raise UserError("has no answer: what the network gives for it is not finite")
        return answer, tuple(outputs[f"next_{name}"] for name in self._state_shapes)

    def _read(self, obs: Any) -> dict[str, Array]:
        """One observation, as its environment gives it, as a batch of one for each input."""
        if len(self.parts) == 1:
            return {"obs": self.parts[0].read(obs)[None]}
        found = {}
        for part in self.parts:
            value = part_of(obs, part.entry)
            try:
                found[part.input] = part.read(value)[None]
            except UserError as error:
                raise UserError(f"has an {'.'.join(map(str, ('obs', *part.entry)))} that {error}") from None
        return found

    def _one_row(self, outputs: Mapping[str, Array]) -> Array:
        """What the action was chosen by, [1, N]; UserError where the outputs are not those for one observation."""
        size = self.action.get("n") if self._distribution is None else self._distribution.num_outputs
        rows = [outputs[name] for name in self._chosen_by]
        state = {outputs[f"next_{name}"].shape == (layers, 1, width) for name, (layers, width) in self._state_shapes.items()}
        if (
            any(row.ndim != 2 or len(row) != 1 for row in rows)
            or sum(row.shape[1] for row in rows) != size
            or outputs["action"].shape[:1] != (1,)
            or False in state
        ):
            raise UserError(f"{self.source}: its outputs are not of the shapes of a policy's")
        return np.concatenate(rows, -1)

    def _checked_inputs(self) -> dict[str, tuple[int, int]]:
        """The parts of the state with layers and size; UserError where the inputs are not those of an exported policy."""
        given = {each.name: each for each in self._session.get_inputs()}
        for part in self.parts:
            obs, wanted = given.get(part.input), list(part.shape)
            if obs is None or list(obs.shape[1:]) != wanted or _DTYPES.get(obs.type) != part.dtype:
                found = "is missing" if obs is None else f"is {obs.type} of shape {obs.shape}"
                raise UserError(f"{self.source}: its input {part.input} {found}, and its metadata says {part.dtype} of shape {wanted}")
        shapes = {}
        for name in STATE_INPUTS:
            if name not in given:
                continue
            shape = given[name].shape
            whole = len(shape) == 3 and all(type(shape[axis]) is int and 0 < shape[axis] <= MAX_STATE for axis in (0, 2))
            if not whole or shape[0] * shape[2] > MAX_STATE or given[name].type != "tensor(float)":
                raise UserError(f"{self.source}: its input {name} is {given[name].type} of shape {shape}, not a state")
            shapes[name] = shape[0], shape[2]
        observed = {part.input for part in self.parts}
        also = {"action_mask"} | ({"episode_start", *PREVIOUS} if shapes else set())
        led = set(PREVIOUS) if given.keys() & set(PREVIOUS) else set()
        needed = {*observed, *shapes} | ({"episode_start"} if shapes else set()) | led
        if not needed <= given.keys() <= {*observed, *shapes, *also}:
            raise UserError(f"{self.source}: has the inputs {', '.join(given):.200}, which are not those of a policy")
        return shapes


def predict_onnx(path: str | Path, observations: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """As `workflows.predict`, from an exported file: what a Dict environment gives is for one that applies its wrappers by itself."""
    policy = OnnxPolicy.load(path)
    entry = policy.parts[0].entry if len(policy.parts) == 1 else ()

    def read(obs: Any, action: Any, episode_start: bool) -> Any:
        return part_of(obs, entry) if entry else obs

    def wrap() -> Wrap:
        if len(policy.parts) == 1 and not entry:
            raise UserError(f"{path}: reads one array; what a Dict environment gives goes through the run's wrappers first")
        return read

    yield from answers(policy, observations, wrap)


def _require_plain(content: bytes, source: str) -> None:
    """Raises UserError for what no exported policy has: weights in other files (of the reader's disk), loops, operators of strangers."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's errors, whichever version
        raise UserError(f"{source}: is no ONNX file ({_short(error)})") from None
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if node.domain not in ("", "ai.onnx") and not any(node.domain == function.domain for function in model.functions):
            raise UserError(f"{source}: holds the operator {node.domain}.{node.op_type:.60}, which is not ONNX's own")
        if any(attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in node.attribute):
            raise UserError(f"{source}: holds a {node.op_type:.60}, and a policy has no branches or loops")
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(model)):
        raise UserError(f"{source}: keeps weights in other files, which are not read")


def _tensors(model: Any) -> Iterator[Any]:
    yield from model.graph.initializer
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)


def _read_metadata(found: Mapping[str, str], source: str) -> dict[str, Any]:
    if found.get("format") != str(FORMAT):
        said = "says of no format" if "format" not in found else f"has the format {found['format']!r:.40}"
        raise UserError(f"{source}: is no policy that rl-training exported in format {FORMAT} (its metadata {said})")
    missing = next((key for key in _KEYS if key not in found), None)
    if missing is not None:
        raise UserError(f"{source}: its metadata has no {missing}")
    large = next((key for key in _KEYS if len(found[key]) > MAX_METADATA), None)
    if large is not None:
        raise UserError(f"{source}: {large} in its metadata has more than {MAX_METADATA:,} characters")
    try:
        spaces = join_state(parse_json(found["spaces"]), {}, source=f"{source}: its metadata")
        checked = require_saved_spaces(spaces, source=f"{source}: its metadata")
    except CheckpointError:
        raise
    except ValueError as error:
        raise UserError(f"{source}: spaces in its metadata are no JSON ({_short(error)})") from None
    if checked["action"]["kind"] not in ("discrete", "multi_discrete", "box"):
        raise UserError(f"{source}: its metadata has actions of the unknown kind {checked['action']['kind']!r:.40}")
    return {**found, "spaces": checked, "observation": _read_parts(found["observation"], source)}


def _read_parts(text: str, source: str) -> tuple[Part, ...]:
    try:
        parts = PARTS.validate_python(parse_json(text))
    except ValidationError as error:
        said = explain.one_line(error, unknown=lambda key: " is no key of an observation's part")
        raise UserError(f"{source}: observation in its metadata cannot be read ({said})") from None
    except ValueError as error:
        raise UserError(f"{source}: observation in its metadata is no JSON ({_short(error)})") from None
    if len({part.input for part in parts}) < len(parts) or (len(parts) == 1) != (parts[0].input == "obs"):
        raise UserError(f"{source}: observation in its metadata names the inputs {', '.join(part.input for part in parts):.200}")
    if sum(math.prod(part.shape) for part in parts) > MAX_ELEMENTS:
        raise UserError(f"{source}: observation in its metadata has more than {MAX_ELEMENTS:,} elements")
    return parts


def _short(error: Exception) -> str:
    return f"{' '.join(str(error).split()) or type(error).__name__:.300}"
