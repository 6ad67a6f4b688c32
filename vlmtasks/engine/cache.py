"""Static key/value cache: allocated once, written in place, one copy of each key/value head."""

import torch
from torch import Tensor

from vlmtasks.engine.config import GemmaConfig


class KeyValueCache:
    """Keys and values of every layer, each (B, kv_heads, slots, head_dim).

    `positions` (B, slots) holds the position of each slot and `valid` (B, slots) whether it may be
    attended to; padding stays invalid, so rows of different length share one cache.
    """

    def __init__(
        self,
        config: GemmaConfig,
        batch_size: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        shape = (batch_size, config.num_key_value_heads, slots, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.positions = torch.zeros(batch_size, slots, dtype=torch.long, device=device)
        self.valid = torch.zeros(batch_size, slots, dtype=torch.bool, device=device)
        self.length = 0  # slots in use

    def claim(self, positions: Tensor, valid: Tensor) -> slice:
        """Reserves the next slots for tokens at `positions` (B, T), `valid` (B, T)."""
        start, stop = self.length, self.length + positions.shape[1]
        slots = self.positions.shape[1]
        if stop > slots:
            raise RuntimeError(f"cache of {slots} slots cannot hold {stop} tokens")
        self.positions[:, start:stop] = positions
        self.valid[:, start:stop] = valid
        self.length = stop
        return slice(start, stop)

    def write(
        self, layer: int, where: slice, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Stores (B, kv_heads, T, head_dim) and returns all keys and values so far."""
        self.keys[layer][:, :, where] = keys
        self.values[layer][:, :, where] = values
        return self.keys[layer][:, :, : where.stop], self.values[layer][:, :, : where.stop]

    def select(self, rows: Tensor) -> None:
        """Keeps, repeats or reorders rows by their indices (B',), for beam search."""
        self.keys = [tensor.index_select(0, rows) for tensor in self.keys]
        self.values = [tensor.index_select(0, rows) for tensor in self.values]
        self.positions = self.positions.index_select(0, rows)
        self.valid = self.valid.index_select(0, rows)

    @staticmethod
    def size_in_bytes(
        config: GemmaConfig, batch_size: int, slots: int, bytes_per_element: int
    ) -> int:
        """2 · batch · slots · head_dim · kv_heads · layers · bytes per element."""
        per_slot = config.head_dim * config.num_key_value_heads * config.num_hidden_layers
        return 2 * batch_size * slots * per_slot * bytes_per_element
