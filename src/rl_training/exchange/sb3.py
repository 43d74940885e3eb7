"""`rl-training import-sb3`: the weights of a Stable-Baselines3 DQN or sb3-contrib QR-DQN zip as a checkpoint of ours.

    model.zip:  data (JSON)   policy.pth (tensors)   policy.optimizer.pth   pytorch_variables.pth   ...

Nothing is unpickled. Of `data` only what is plain JSON is read, its pickled entries are not. `policy.pth` goes through torch's reader for
weights alone. A zip may be a stranger's: sizes are looked at before anything is read.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from rl_training.envs.factory import make_envs
from rl_training.errors import UserError
from rl_training.experiment.checkpoint_copy import copy_checkpoint, require_replaceable
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import read_bytes, reason
from rl_training.experiment.manifest import manifest_of
from rl_training.runtime.trainer_setup import Seeds, build_network, describe_spaces, require_row_spaces
from rl_training.types import ActivationName

MAX_BYTES = 1 << 28  # of the zip, and of the weights in it
MAX_DATA = 1 << 24
MAX_DIRECTORY = 1 << 16  # of a zip's table of contents: SB3 writes six entries, torch one for each tensor
NETWORKS = {"q_net.q_net": "dqn", "quantile_net.quantile_net": "qr_dqn"}
"""Where each kind of policy has its layers, and the row that it is."""


class Layers(NamedTuple):
    """W₁, b₁, W₂, b₂, … of a fully connected network, and the row it is of."""

    row: str
    weights: tuple[tuple[Tensor, Tensor], ...]


def import_sb3(file: str | Path, output: str | Path, *, env_id: str | None, activation: str | None = None) -> Path:
    """Writes the network in SB3's `file` to `output`, a checkpoint that eval, predict and export take; there is no training to resume.

    env_id: what it was trained on, which the zip does not say. activation: between its layers, where the zip cannot be read for it.
    """
    require_replaceable(Path(output))
    members = _members(_content(file), f"{file}")
    if env_id is None:
        raise UserError(f"{file}: does not say which environment it was trained on: give --env")
    about = _data(members, file)
    layers = read_layers(_tensors(members, file), file)
    config, spaces = _config(layers, about, env_id, activation, file)
    network = build_network(config, spaces, Seeds.of(0).network)
    state = _loaded(network, layers, int(spaces["num_actions"]), file)
    manifest = {**manifest_of(config), "spaces": spaces, "for_resume": False, "imported_from": f"Stable-Baselines3 {_version(members)}"}
    with tempfile.TemporaryDirectory() as folder:
        saved = CheckpointStore(folder, keep=1).save(
            _steps(about), model=state, training={}, replay=None, manifest=manifest, link_latest=False
        )
        return copy_checkpoint(saved, output)


# Reading


def _content(file: str | Path) -> bytes:
    try:
        return read_bytes(Path(file), limit=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({reason(error)})") from None


def _members(content: bytes, source: str) -> zipfile.ZipFile:
    """The zip in `content`; UserError where it is none, or could unfold to more than it may."""
    end = content.rfind(b"PK\x05\x06", max(0, len(content) - (1 << 16) - 22))
    if end < 0:
        raise UserError(f"{source}: is no zip file, or one that was cut off")
    try:
        if int.from_bytes(content[end + 12 : end + 16], "little") > MAX_DIRECTORY:  # before it is read: it could hold millions of names
            raise UserError(f"{source}: has a table of contents of more than {MAX_DIRECTORY:,} bytes")
        found = zipfile.ZipFile(io.BytesIO(content))
    except UserError:
        raise
    except Exception as error:  # zipfile raises what it meets
        raise UserError(f"{source}: is no zip file ({reason(error)})") from None
    names = [entry.filename for entry in found.infolist()]
    if len(set(names)) < len(names):
        raise UserError(f"{source}: holds a name twice")
    for entry in found.infolist():
        if entry.flag_bits & 1:
            raise UserError(f"{source}: {entry.filename!r:.60} in it is encrypted")
        if entry.filename.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", entry.filename):
            raise UserError(f"{source}: holds the odd name {entry.filename!r:.60}")
    if sum(entry.file_size for entry in found.infolist()) > MAX_BYTES:
        raise UserError(f"{source}: unfolds to more than the {MAX_BYTES:,} bytes it may have")
    return found


def _member(members: zipfile.ZipFile, name: str, limit: int, source: object) -> bytes:
    try:
        with members.open(name) as file:
            content = file.read(limit + 1)  # a zip may say less than it holds
    except KeyError:
        raise UserError(f"{source}: holds no {name}: it is no model that Stable-Baselines3 saved, or was cut off") from None
    except Exception as error:  # a damaged or unknown compression
        raise UserError(f"{source}: its {name} cannot be read ({reason(error)})") from None
    if len(content) > limit:
        raise UserError(f"{source}: its {name} is larger than the {limit:,} bytes it may have")
    return content


def _data(members: zipfile.ZipFile, source: object) -> dict[str, Any]:
    try:
        found = json.loads(_member(members, "data", MAX_DATA, source))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source}: its data is no JSON ({reason(error)})") from None
    if not isinstance(found, dict):
        raise UserError(f"{source}: its data is no JSON object")
    return found


def _tensors(members: zipfile.ZipFile, source: object) -> dict[str, Tensor]:
    """The tensors of policy.pth by name: nothing else can come out of it."""
    content = _member(members, "policy.pth", MAX_BYTES, source)
    _members(content, f"{source}: its policy.pth").close()  # torch's file is a zip too: the older kind, a bare pickle, is not read
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # its reader raises what it meets
        raise UserError(f"{source}: its policy.pth holds more than weights, or is damaged ({type(error).__name__})") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in found.items()):
        raise UserError(f"{source}: its policy.pth is no table of tensors")
    for name, tensor in found.items():
        if not tensor.is_floating_point() or not tensor.is_contiguous() or tensor.nbytes > len(content):
            raise UserError(f"{source}: {name!r:.60} in its policy.pth is no plain tensor of floats")
    return dict(found)


def read_layers(tensors: Mapping[str, Tensor], source: object) -> Layers:
    """The layers of the online network, in order; UserError where it is anything but a stack of them."""
    prefix = next((prefix for prefix in NETWORKS if any(name.startswith(f"{prefix}.") for name in tensors)), None)
    if prefix is None:
        raise UserError(f"{source}: holds no policy of DQN or QR-DQN")
    online = {name: tensor for name, tensor in tensors.items() if not re.match(r"(q_net|quantile_net)_target\.", name)}
    weights: list[tuple[Tensor, Tensor]] = []
    for index in range(0, len(online), 2):  # what stands between two layers is an activation, without weights
        weight, bias = (online.pop(f"{prefix}.{index}.{part}", None) for part in ("weight", "bias"))
        if weight is None or bias is None:
            break
        fits = weight.ndim == 2 and bias.shape == weight.shape[:1] and (not weights or weight.shape[1] == len(weights[-1][1]))
        if not fits or not (weight.isfinite().all() and bias.isfinite().all()):
            raise UserError(f"{source}: layer {index} of its network is {list(weight.shape)} and {list(bias.shape)}, or not finite")
        weights.append((weight.float(), bias.float()))
    if online or not weights:
        odd = min(online, default=prefix)
        raise UserError(f"{source}: only fully connected networks (MlpPolicy) are read, and it holds {odd!r:.80}")
    return Layers(NETWORKS[prefix], tuple(weights))


def _version(members: zipfile.ZipFile) -> str:
    try:
        said = _member(members, "_stable_baselines3_version", 64, "").decode("ascii").strip()
    except (UserError, UnicodeDecodeError):
        return "of unknown version"
    return said if re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", said) else "of unknown version"


def _steps(about: Mapping[str, Any]) -> int:
    steps = about.get("num_timesteps")
    return steps if type(steps) is int and 0 <= steps < 10**15 else 0


# Making a checkpoint


def _activation(about: Mapping[str, Any], given: str | None, source: object) -> str:
    """`given`, or what `policy_kwargs` says in plain words; SB3's own for these policies is ReLU."""
    known = get_args(ActivationName)
    if given is not None:
        if given not in known:
            raise UserError(f"--activation {given!r:.40} is not one of {', '.join(known)}")
        return given
    keywords = about.get("policy_kwargs", {})
    # what is pickled stands beside it in words, entry by entry
    plain = isinstance(keywords, dict) and (":serialized:" not in keywords or any(not key.startswith(":") for key in keywords))
    said = keywords.get("activation_fn", "torch.nn.modules.activation.ReLU'") if plain else None
    match = re.search(r"torch\.nn\.modules\.activation\.(\w+)'", said) if isinstance(said, str) else None
    name = match[1].lower() if match else ""
    if name not in known:
        raise UserError(
            f"{source}: the activation between its layers cannot be read or is not known here: give --activation ({', '.join(known)})"
        )
    return name


def _config(
    layers: Layers, about: Mapping[str, Any], env_id: str, activation: str | None, source: object
) -> tuple[TrainConfig, dict[str, Any]]:
    """The config whose network these layers are, and the spaces of its environment."""
    sizes = [len(bias) for _, bias in layers.weights]
    algo_kwargs: dict[str, Any] = {"hidden_sizes": sizes[:-1], "activation": _activation(about, activation, source)}
    for theirs, ours in (("gamma", "gamma"), ("exploration_final_eps", "epsilon_end")):
        value = about.get(theirs)
        if isinstance(value, float) and 0 <= value <= 1:
            algo_kwargs[ours] = value

    def config_of(wrappers: list[str], extra: Mapping[str, Any]) -> TrainConfig:
        common: dict[str, Any] = {"seed": 0, "total_timesteps": max(1, _steps(about)), "output_dir": "runs", "device": "cpu", "threads": 1}
        env_kwargs = {"wrappers": wrappers} if wrappers else {}
        return TrainConfig(algo=layers.row, env_id=env_id, env_kwargs=env_kwargs, algo_kwargs={**algo_kwargs, **extra}, **common)

    wants = layers.weights[0][0].shape[1]
    for wrappers in ([], ["flatten"]):  # SB3 flattens, and makes Discrete observations one-hot, by itself
        envs = make_envs(env_id, num_envs=1, seed=0, env_kwargs={"wrappers": wrappers} if wrappers else {})
        try:
            config = config_of(wrappers, {})
            spaces = describe_spaces(envs)
            if spaces["obs_shape"] == [wants] and "image" not in spaces:
                require_row_spaces(config, envs)
                break
        finally:
            envs.close()
    else:
        raise UserError(f"{source}: its network reads {wants} numbers, and {env_id} gives {spaces['obs_shape']}")
    actions = spaces.get("num_actions", 0)
    quantiles, left = divmod(sizes[-1], actions) if actions else (0, 1)
    if left or (layers.row == "dqn" and quantiles != 1):
        raise UserError(f"{source}: its network has {sizes[-1]} outputs, and {env_id} has {actions or 'no discrete'} actions")
    return (config_of(wrappers, {"num_quantiles": quantiles}) if layers.row == "qr_dqn" else config), spaces


def _loaded(network: Any, layers: Layers, num_actions: int, source: object) -> dict[str, Any]:
    """The state of our network with these layers. SB3's quantiles come [N, A], ours [A, N]."""
    weights = list(layers.weights)
    if layers.row == "qr_dqn":
        weight, bias = weights[-1]
        weight = weight.view(-1, num_actions, weight.shape[1]).transpose(0, 1).flatten(0, 1)
        weights[-1] = weight, bias.view(-1, num_actions).T.flatten()
    ours = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if [tuple(module.weight.shape) for module in ours] != [tuple(weight.shape) for weight, _ in weights]:
        raise UserError(f"{source}: its layers are not those of the row {layers.row}")
    with torch.no_grad():
        for module, (weight, bias) in zip(ours, weights, strict=True):
            module.weight.copy_(weight)
            module.bias.copy_(bias)
    return dict(network.state_dict())
