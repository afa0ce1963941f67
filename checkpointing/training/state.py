"""Takes the state of a training under names that do not depend on how the model is wrapped, and gives it back.

    checkpoint = load_latest("ckpt", into={**state(model, optimizer), "step": 0})
    if checkpoint is not None:
        apply(checkpoint.state, model, optimizer)

The values are the training's own tensors (of FSDP2 the shards, DTensors), through torch.distributed.checkpoint.state_dict, not copies.

*Names.* A wrapper holds the module in an attribute (`module`, `_orig_mod`, …), which is in torch's keys. `plain_name` walks from the
model along a key and leaves these out. `module` is left out only where its holder is one of torch's wrappers: a module of the user's may
have a part of that name.

*Together.* The random generators and the data position are each rank's own, and rank 0 alone writes a checkpoint that is not sharded. So
they are gathered, and every rank must make the call. FSDP1 communicates too, and so do shards that are applied to a model without. The
ranks meet in the store first (ranks.py), where a missing rank can be named. Everything else is done without the other ranks, such as an
EMA that only rank 0 has.

*Parts of a rank* (loader, rng) are texts, torch.save in base64, in a list: DCP takes such a list as one object, whose length may differ
from that of the checkpoint. They are read back without executing a pickle.
"""

from __future__ import annotations

import base64
import functools
import io
import itertools
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from checkpointing.model import CheckpointingError
from checkpointing.training.ranks import Ranks, ranks
from checkpointing.training.save import has_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

#: Attributes in which wrappers hold a module: torch.compile, FSDP1, activation checkpointing, fairscale.
_HIDDEN: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_fpw_module")
_MOST_NAMED: Final = 4
_NOT_TAKEN: Final = "the state was not taken"
_NOT_APPLIED: Final = "the state was not applied"
_OTHER_MODEL: Final = "give it the model and the optimizer of the training that the state is of; nothing was changed"
_EARLY_OPTIMIZER: Final = "make the optimizer of model.parameters(), after fully_shard or any other wrapping"

# the meetings of this process, which every rank goes through in the same order
_numbers: Final = itertools.count()


def state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    ema: torch.nn.Module | Mapping[str, Any] | None = None,
    loader: Any = None,  # noqa: ANN401 -- a StatefulDataLoader, a DataLoader, a sampler
    rng: bool = True,  # noqa: FBT001, FBT002 -- as in the documentation
) -> dict[str, Any]:
    """Return what a training needs to continue: `model`, and as given `optimizer`, `ema`, `loader`, `rng`.

    Every rank must call it where rng or loader is taken. ema may be held by some ranks only. The tensors are the training's own, no copies.
    An optimizer that has made no step gets its state (zeros), so that there is something to load into. Raises CheckpointingError.
    """
    together = _meeting("state", _NOT_TAKEN, needed=rng or loader is not None or _has_fsdp1(model))
    with together.together():
        own: dict[str, str] = {}
        if loader is not None:
            own["loader"] = _packed(_position(loader))
        if rng:
            own["rng"] = _packed(_generators())
        _refuse_strangers(model, optimizer, _NOT_TAKEN)
        together.meet()
        taken: dict[str, Any] = {"model": _module_part(model)}
        if optimizer is not None:
            taken["optimizer"] = _optimizer_part(model, optimizer)
        if ema is not None:
            taken["ema"] = _ema_part(model, ema)
        for name, text in own.items():
            taken[name] = _gathered(text, together)
        return taken


def apply(  # noqa: PLR0913, PLR0917 -- the state, and what `state` takes
    state: Mapping[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    ema: torch.nn.Module | MutableMapping[str, Any] | None = None,
    loader: Any = None,  # noqa: ANN401 -- as in state
    rng: bool = True,  # noqa: FBT001, FBT002 -- as in state
) -> None:
    """Put a state into a training, however its model is wrapped.

    Names and shapes must be the same: all is compared before anything is changed. Raises CheckpointingError, which names what differs. Of
    another number of ranks, the generators keep their fresh seeds, and so does a loader whose ranks differed; a warning says so.
    """
    communicates = _has_fsdp1(model)  # also when its own state is taken, to compare
    together = _meeting("apply", _NOT_APPLIED, needed=has_shards(state) or communicates)
    with together.together():
        parts = {"model": model, "optimizer": optimizer, "ema": ema, "loader": loader}
        absent = [name for name, part in parts.items() if part is not None and name not in state]
        if absent:
            raise CheckpointingError(f"{_NOT_APPLIED}: it has no {', '.join(absent)}", hint="take it with the same arguments")
        go_there = None if loader is None else _way_to(_own_part("loader", state["loader"]), loader)
        generators = _own_part("rng", state["rng"]) if rng and "rng" in state else None
        _refuse_strangers(model, optimizer, _NOT_APPLIED)
        if communicates:
            together.meet()
        own_model = _module_part(model)
        own_optimizer = None if optimizer is None else _optimizer_part(model, optimizer)
        own_ema = None if ema is None else _ema_part(model, ema)
        _compare("model", own_model, state["model"])
        if own_optimizer is not None:
            _compare_optimizers(own_optimizer, state["optimizer"])
        if own_ema is not None:
            _compare("ema", own_ema, state["ema"])
        if not communicates:
            together.meet()  # what does not fit on one rank is applied on none
        _fill_module(model, own_model, state["model"])
        if optimizer is not None and own_optimizer is not None:
            _fill_optimizer(model, optimizer, own_optimizer, state["optimizer"])
        if ema is not None and own_ema is not None:
            _fill_ema(model, ema, own_ema, state["ema"])
        if go_there is not None:
            go_there()
        if generators is not None:
            _set_generators(generators)


def plain_name(model: torch.nn.Module, key: str) -> str:
    """Return a key of the model's state, or the name of a parameter, as the bare model has it.

    module._orig_mod.layers.0._checkpoint_wrapped_module.weight is layers.0.weight. Keys from which torch's hooks took some are known too.
    """
    at: Any = model
    parts = []
    for word in key.split("."):
        while (inner := _inner_name(at)) and word != inner and word not in _own_names(at):
            at = getattr(at, inner)
        if word != inner:
            parts.append(word)
        at = getattr(at, word, None)
    return ".".join(parts)


def _inner_name(at: Any) -> str:  # noqa: ANN401 -- a module, a tensor, None
    """Return the attribute in which a wrapper holds its module; "" for another object."""
    if not isinstance(at, torch.nn.Module):
        return ""
    children = at._modules  # noqa: SLF001 -- the wrappers forward other attributes to the module that they hold
    for name in _HIDDEN:
        if name in children:
            return name
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel, torch.optim.swa_utils.AveragedModel)
    return "module" if isinstance(at, wrappers) else ""


def _own_names(at: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of what a wrapper has beside its module, such as the count of an AveragedModel."""
    return (*at._buffers, *at._parameters)  # noqa: SLF001 -- as above


# taking


def _module_part(model: torch.nn.Module) -> dict[str, Any]:
    return {plain_name(model, key): value for key, value in _module_state(model).items()}


def _module_state(model: torch.nn.Module) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict  # noqa: PLC0415 -- a second of import

    taken: dict[str, Any] = get_model_state_dict(model)
    return taken


def _optimizer_part(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return _renamed(_optimizer_state(model, optimizer), lambda name: plain_name(model, name))


def _optimizer_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: PLC0415 -- as above

    taken: dict[str, Any] = get_optimizer_state_dict(model, optimizer)
    return taken


def _renamed(taken: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, Any]:
    """Return an optimizer's state with other names, and without `param_names`, which torch fills in itself, with the wrappers' prefixes."""
    groups = [
        {key: [name_of(name) for name in value] if key == "params" else value for key, value in group.items() if key != "param_names"}
        for group in taken["param_groups"]
    ]
    return {"state": {name_of(name): dict(values) for name, values in taken["state"].items()}, "param_groups": groups}


def _ema_part(model: torch.nn.Module, ema: torch.nn.Module | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(ema, torch.nn.Module):
        return _module_part(ema)
    return {plain_name(model, key): value for key, value in ema.items()}


def _refuse_strangers(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, failed: str) -> None:
    """Raise where the optimizer holds parameters that the model does not have, such as those from before fully_shard."""
    if optimizer is None:
        return
    known = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in known for parameter in held)
    if strangers:
        raise CheckpointingError(
            f"{failed}: {strangers} of the {len(held)} parameters of the optimizer are not the model's", hint=_EARLY_OPTIMIZER
        )


# comparing


def _compare(part: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise CheckpointingError where names or shapes differ."""
    differences = [
        _listed("missing", sorted(own.keys() - given.keys())),
        _listed("unexpected", sorted(given.keys() - own.keys())),
        _listed("of another shape", _other_shapes(own, given)),
    ]
    text = "; ".join(difference for difference in differences if difference)
    if text:
        raise CheckpointingError(f"{_NOT_APPLIED}: {part}: {text}", hint=_OTHER_MODEL)


def _compare_optimizers(own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise where the parameters, their groups or the shapes of their states differ; a parameter without a gradient so far has no state."""
    groups, given_groups = ([frozenset(group["params"]) for group in side["param_groups"]] for side in (own, given))
    _compare("optimizer", *(dict.fromkeys(frozenset().union(*side)) for side in (groups, given_groups)))
    if set(groups) != set(given_groups) or len(groups) != len(given_groups):
        counts = f"{len(groups)} groups here, and in {len(given_groups)} others there"
        raise CheckpointingError(f"{_NOT_APPLIED}: optimizer: its parameters stand in {counts}", hint=_OTHER_MODEL)
    shapes = _listed("of another shape", [
        f"{name} {text}"
        for name, values in own["state"].items()
        for text in _other_shapes(values, given["state"].get(name, {}))
    ])  # fmt: skip
    if shapes:
        raise CheckpointingError(f"{_NOT_APPLIED}: optimizer: {shapes}", hint=_OTHER_MODEL)


def _other_shapes(own: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {tuple(value.shape)} here and {tuple(given[name].shape)} there"
        for name, value in own.items()
        if isinstance(value, torch.Tensor) and isinstance(given.get(name), torch.Tensor) and value.shape != given[name].shape
    ]


def _listed(word: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(names)} {word}: {', '.join(names[:_MOST_NAMED])}{more}"


# applying


def _fill_module(module: torch.nn.Module, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict  # noqa: PLC0415 -- as above

    names = {key: plain_name(module, key) for key in _module_state(module)}
    set_model_state_dict(module, {key: _like(given[name], own[name]) for key, name in names.items()})


def _fill_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict  # noqa: PLC0415 -- as above

    parameters = {plain_name(model, name): parameter for name, parameter in model.named_parameters()}
    names = {plain_name(model, name): name for group in _optimizer_state(model, optimizer)["param_groups"] for name in group["params"]}
    laid_out = {
        "state": {
            name: {key: _copied(value, own["state"].get(name, {}).get(key), parameters.get(name)) for key, value in values.items()}
            for name, values in given["state"].items()
        },
        "param_groups": given["param_groups"],
    }
    # of a parameter without a gradient so far there is no state, which DCP calls strict
    set_optimizer_state_dict(model, optimizer, _renamed(laid_out, names.__getitem__), options=StateDictOptions(strict=False))


def _copied(value: Any, own: Any, parameter: torch.Tensor | None) -> Any:  # noqa: ANN401 -- a value of an optimizer's state
    """Return a value of an optimizer's state laid out as it is here: torch's load_state_dict would share the tensor with the state."""
    if not isinstance(value, torch.Tensor) or value is own:
        return value
    if own is None and parameter is not None and value.shape == parameter.shape:
        own = parameter
    return _like(value, own).detach().clone()


def _fill_ema(
    model: torch.nn.Module, ema: torch.nn.Module | MutableMapping[str, Any], own: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    if isinstance(ema, torch.nn.Module):
        _fill_module(ema, own, given)
        return
    for key, tensor in ema.items():
        value = given[plain_name(model, key)]
        if isinstance(tensor, torch.Tensor):
            with torch.no_grad():
                tensor.copy_(_like(value, tensor))
        else:
            ema[key] = value


def _like(value: Any, own: Any) -> Any:  # noqa: ANN401 -- tensors, and what a module's extra state is
    """Return a value in the layout of the one that is here: whole, or in shards. Only shards that are not laid out so communicate."""
    from torch.distributed.tensor import DTensor, Replicate  # noqa: PLC0415 -- as above

    if not isinstance(own, DTensor):
        return value.full_tensor() if isinstance(value, DTensor) else value
    if isinstance(value, DTensor):
        if value.device_mesh == own.device_mesh and value.placements == own.placements:
            return value
        value = value.full_tensor()
    copies = [Replicate()] * own.device_mesh.ndim
    value = DTensor.from_local(value.detach().to(own.device), own.device_mesh, copies, run_check=False)
    return value.redistribute(placements=own.placements)  # each rank cuts out its own


# what each rank has of its own


def _position(loader: Any) -> dict[str, Any]:  # noqa: ANN401 -- as in state
    """Return where a loader or its sampler is in the data."""
    for source in _parts_of(loader):
        if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
            return {"state": source.state_dict()}
    for source in _parts_of(loader):
        if hasattr(source, "set_epoch") and hasattr(source, "epoch"):
            return {"epoch": int(source.epoch)}
    message = f"{_NOT_TAKEN}: neither {type(loader).__name__} nor its sampler has state_dict and load_state_dict, or set_epoch and epoch"
    raise CheckpointingError(message, hint="use torchdata's StatefulDataLoader, or save the position yourself and leave loader= out")


def _way_to(position: Mapping[str, Any] | None, loader: Any) -> Callable[[], object] | None:  # noqa: ANN401 -- as in state
    """Return what sets a loader or its sampler to a position; None where there is none. Raises where the loader takes no such position."""
    if position is None:
        return None
    ((kind, value),) = position.items()
    setter = "load_state_dict" if kind == "state" else "set_epoch"
    for source in _parts_of(loader):
        if hasattr(source, setter):
            return functools.partial(getattr(source, setter), value)
    message = f"{_NOT_APPLIED}: loader: neither {type(loader).__name__} nor its sampler has {setter}"
    raise CheckpointingError(message, hint="give apply a loader of the kind that state was given; nothing was changed")


def _parts_of(loader: Any) -> list[Any]:  # noqa: ANN401 -- as in state
    return [source for source in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)) if source is not None]


def _generators() -> dict[str, Any]:
    taken: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        kind, keys, *rest = numpy.random.get_state()
        taken["numpy"] = (kind, keys.tolist(), *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        taken["cuda"] = torch.cuda.get_rng_state()
    return taken


def _set_generators(taken: Mapping[str, Any]) -> None:
    random.setstate(taken["python"])
    torch.set_rng_state(taken["torch"])
    if "numpy" in taken and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(taken["numpy"])
    if "cuda" in taken and torch.cuda.is_available():
        torch.cuda.set_rng_state(taken["cuda"])


def _packed(value: Any) -> str:  # noqa: ANN401 -- a part of a state
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _own_part(name: str, texts: list[str]) -> Any:  # noqa: ANN401 -- a part of a state
    """Return this rank's part; None, with a warning, where the ranks are others than those of the state."""
    together = ranks("")
    rank, world = together.rank, together.world
    text = texts[rank] if len(texts) == world else ""
    if not text and name == "loader" and len(set(texts)) == 1:
        text = texts[0]  # a position that is that of all ranks, such as an epoch
    if text:
        try:
            return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
        except Exception as error:
            first = str(error).strip().partition("\n")[0].partition(". ")[0]
            hint = "allow its classes by torch.serialization.add_safe_globals; nothing was changed"
            raise CheckpointingError(f"{_NOT_APPLIED}: {name} cannot be read: {first}", hint=hint) from error
    if rank == 0:
        kept = "keep their fresh seeds" if name == "rng" else "begin anew in the data"
        text = f"checkpointing.apply: the state has the {name} of {len(texts)} ranks, and there are {world} now, which {kept}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    return None


# the other ranks


def _has_fsdp1(model: torch.nn.Module) -> bool:
    return any("_fsdp_wrapped_module" in module._modules for module in model.modules())  # noqa: SLF001 -- as above


def _meeting(name: str, failed: str, *, needed: bool) -> Ranks:
    """Return the ranks that must make the call of this name; this one alone where no other is needed."""
    if not needed:
        return Ranks(failed)
    return ranks(failed, place=f"checkpointing/{name}/{next(_numbers)}")


def _gathered(text: str, together: Ranks) -> list[str]:
    """Return the texts of all ranks. A collective."""
    texts: list[Any] = [text] * together.world
    if together.store is not None:
        torch.distributed.all_gather_object(texts, text)
    return texts
