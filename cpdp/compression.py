"""torch's own communication hooks for DDP's gradients: half precision and PowerSGD.

Flow: `strategies.ddp` -> `hook` -> `Collectives.data_parallel`, which registers it. The hooks are torch's, unchanged;
what is ours is that PowerSGD's memory (its low-rank factors, the error that each worker still owes, the generator of
its first guess) survives a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from cpdp.errors import StrategyError

if TYPE_CHECKING:
    from torch import Tensor

    from cpdp.collectives import Collectives


def hook(name: str, collectives: Collectives, *, rank: int, start: int) -> tuple[Any, Any] | None:
    """State and function for `register_comm_hook`; None for DDP's own averaging. `rank` and `start` are PowerSGD's."""
    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            collectives.group, matrix_approximation_rank=rank, start_powerSGD_iter=start
        )
        return state, powerSGD_hook.powerSGD_hook
    functions = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    return (collectives.group, functions[name]) if name in functions else None


_MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")


def memory(state: powerSGD_hook.PowerSGDState) -> dict[str, Any]:
    """What PowerSGD carries from step to step, as tensors and numbers."""
    kind, keys, position, has_gauss, gauss = state.rng.get_state(legacy=True)
    generator = [kind, np.asarray(keys).tolist(), position, has_gauss, gauss]
    kept = {name: {index: t.clone() for index, t in getattr(state, name).items()} for name in _MEMORY}
    return {"iter": state.iter, "generator": generator, **kept}


def restore_memory(state: powerSGD_hook.PowerSGDState, saved: Mapping[str, Any]) -> None:
    """Put back what `memory` returned. Raises StrategyError when something is missing."""
    if set(saved) != {"iter", "generator", *_MEMORY}:
        raise StrategyError(f"ddp: the saved PowerSGD state has {', '.join(saved) or 'nothing'}")
    state.iter = int(saved["iter"])
    kind, keys, position, has_gauss, gauss = saved["generator"]
    state.rng.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    for name in _MEMORY:
        kept: dict[int, Tensor] = {int(index): tensor.clone() for index, tensor in saved[name].items()}
        setattr(state, name, kept)
