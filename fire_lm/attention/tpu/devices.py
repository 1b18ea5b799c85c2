"""The split of a kernel's sequences and heads over a mesh, because XLA cannot partition a kernel.

Shapes: B batch, N heads, H head dim, P tokens (padded).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fire_lm.attention.terms import axes_of
from fire_lm.attention.tpu.tables import Tables

Axes = tuple[str, ...]


class Inputs(NamedTuple):
    """The arrays that the kernels take, with queries scaled so that q·k is a base-2 logit.

    `decay_BN2P` contains the whole and the part of each token's `Decay` (see `attention.decay`).
    """

    q_BNHP: Any
    k_BNHP: Any
    v_BNHP: Any
    tables: Tables | None
    segments_B1P: Any | None
    decay_BN2P: Any | None = None


@dataclasses.dataclass(frozen=True)
class Devices:
    """The mesh axes over which the sequences and the heads are split.

    Attributes:
      mesh: The mesh, or None if one device has all sequences and heads.
      batch: The mesh axes over which the sequences are split.
      heads: The mesh axes over which the heads are split.
      sequence: The mesh axis over which the tokens of a sequence are split, or None.
    """

    mesh: Mesh | None = None
    batch: Axes = ()
    heads: Axes = ()
    sequence: str | None = None

    @classmethod
    def of(cls, sharding: NamedSharding | None, shape: tuple[int, ...]) -> Devices:
        """Return the mesh axes that split an array `[B, T, N, H]` with this sharding and shape.

        A dimension is not split if its size is not a multiple of the number of devices along its
        mesh axes.
        """
        if sharding is None or sharding.mesh.size == 1:
            return cls()
        mesh = sharding.mesh
        assert isinstance(mesh, Mesh)

        def axes(axis: int) -> Axes:
            names = axes_of(sharding, axis)
            return () if shape[axis] % math.prod(mesh.shape[name] for name in names) else names

        batch, tokens, heads = (axes(axis) for axis in range(3))
        return cls(mesh, batch, heads, tokens[0] if tokens else None)

    @property
    def parts_of_batch(self) -> int:
        return math.prod(self.mesh.shape[name] for name in self.batch) if self.mesh else 1

    @property
    def slices(self) -> int:
        """The number of devices among which each sequence is split."""
        return 1 if self.mesh is None or self.sequence is None else self.mesh.shape[self.sequence]

    @property
    def _axes(self) -> Axes:
        return (*self.batch, *self.heads, *((self.sequence,) if self.sequence else ()))

    def by_example(self) -> PartitionSpec:
        """Return the partition spec of an array `[B, N, H, P]`."""
        spec = PartitionSpec(self.batch, self.heads)
        return spec if self.sequence is None else PartitionSpec(*spec, None, self.sequence)

    def specs(self, inputs: Inputs) -> Inputs:
        """Return the partition spec of each input."""
        tables = None
        if inputs.tables is not None:
            by_segment = PartitionSpec(None, self.heads)
            of_rows = self.batch if inputs.tables.row_EP.shape[0] > 1 else None
            by_table: dict[str, Any] = dict(
                slab_MP=PartitionSpec(self.heads if inputs.tables.slab_MP.shape[0] > 1 else None),
                row_EP=PartitionSpec(of_rows),
                gain_EP=PartitionSpec(of_rows),
                kink_K=PartitionSpec(),
                slope_KN=by_segment,
                offset_KN=by_segment,
                rate=None if inputs.tables.rate is None else PartitionSpec(),
            )
            tables = Tables(**by_table)
        segments = None
        if inputs.segments_B1P is not None:
            segments = PartitionSpec(self.batch)
            if self.sequence is not None:
                segments = PartitionSpec(self.batch, None, self.sequence)
        q, k, v = [self.by_example()] * 3
        decay = None if inputs.decay_BN2P is None else self.by_example()
        return Inputs(q, k, v, tables, segments, decay)

    def run(
        self, function: Callable[..., Any], inputs: Inputs, *by_example: jax.Array, out_specs: Any
    ) -> Any:
        """Run `function(inputs, *by_example)` on each device with its share of sequences and heads.

        The custom VJP of the attention encloses this call, so JAX never transposes the `shard_map`.
        The backward pass is a second call, whose `function` must sum the gradients of replicated
        tables itself (`sum_tables`).

        Args:
          function: The function to run; it receives one device's share of each array.
          inputs: The inputs of the kernels.
          by_example: Additional arrays `[B, N, H, P]`.
          out_specs: The partition specs of the outputs of `function`.
        """
        if self.mesh is None:
            return function(inputs, *by_example)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(self.specs(inputs), *[self.by_example()] * len(by_example)),
            out_specs=out_specs,
            check_vma=False,
        )(inputs, *by_example)

    def sum_tables(self, found: Tables | None, specs: Tables | None) -> Tables | None:
        """Sum each table's gradient over the devices that have the same entries of the table.

        These are the devices along the mesh axes that split the sequences, their tokens or the
        heads, but not the table. This method must be called inside `run`.
        """
        if found is None or specs is None:
            return None

        def total(x: Any, spec: Any) -> Any:
            axes = [(names,) if isinstance(names, str) else names or () for names in spec]
            split = set(itertools.chain(*axes))
            shared = tuple(name for name in self._axes if name not in split)
            return jax.lax.psum(x, shared) if shared else x

        return jax.tree.map(total, found, specs)
