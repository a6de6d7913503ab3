"""Attention on WebGPU over the KV cache: one row a sequence (decode) and many rows of one (prefill).

All variants sum in f32 and use the online softmax, so none has a longest cache.
Dimension letters: T rows, H num_heads, K num_kv_heads, E head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.gpu.device import DeviceCaps
from inference.kernels.base import Decision, Variant, select
from inference.kernels.dispatch import STATE, Binding, Constant, Dispatch, KernelContext, layer_of, tensor
from inference.plan.ops import Attention, Op

SCRATCH = Binding("scratch", "attention")
STREAMING_SIZE = 64
MERGE_SIZE = 32

# Invocations of a decode workgroup, in subgroups.
DECODE_SUBGROUPS = 8
# vec4s that an invocation of decode keeps of its queries, and as many of its sums; more would leave the registers.
DECODE_QUADS = 16
# A decode workgroup reads 4 keys a lane group and turn. So few turns end before a second dispatch would have begun.
FEW_TURNS = 8
# Of so few keys query heads are taken one by one: reading a KV head again costs less than having few workgroups.
FEW_KEYS = 1024
TURNS_PER_SPLIT = 2
# More shares, or more workgroups than fill a large GPU, only add to the merge.
MAX_SPLITS = 32
MAX_SPLIT_WORKGROUPS = 256
SPLITS_AT_ONCE = 16


@dataclass(frozen=True)
class Tile:
    """Queries of a workgroup; `columns` invocations share `thread_queries` of them, each scores `keys` keys at a time.

    `thread_queries` is 1, 2 or 4 and divides `queries`.
    """

    queries: int
    columns: int
    keys: int
    thread_queries: int
    stage_queries: bool

    def storage(self, head_dim: int) -> int:
        """Bytes of workgroup memory."""
        keys = self.keys * self.columns
        staged = keys + (self.queries if self.stage_queries else 0)
        return staged * (head_dim // 4 | 1) * 16 + self.queries * (keys + self.columns) * 4

    def words(self, head_dim: int) -> int:
        """Scores and sums of values that an invocation keeps."""
        return self.thread_queries * (self.keys + 4 * -(-head_dim // 4 // self.columns))


# Best first. An invocation of 4 queries does four times as much with each key and value that it reads; few queries
# would leave most invocations of a tile of 32 idle.
TILES = (
    Tile(32, 16, 2, 4, True),
    Tile(32, 16, 2, 4, False),
    Tile(32, 8, 2, 4, False),
    Tile(16, 8, 4, 1, True),
    Tile(16, 8, 4, 1, False),
    Tile(16, 8, 2, 1, False),
    Tile(16, 8, 1, 1, False),
)
SMALL_TILES = (
    Tile(32, 4, 4, 2, False),
    Tile(32, 4, 2, 2, False),
    Tile(16, 4, 4, 1, False),
    Tile(16, 4, 2, 1, False),
    Tile(16, 4, 1, 1, False),
)
# Scores and sums of an invocation; with the keys and queries that it is at, more would leave the registers.
MOST_WORDS = 128
SMALL_STORAGE = 8192


@dataclass(frozen=True)
class AttentionRequest:
    """What selection looks at. `keys` is the most that a row can see."""

    rows: int
    attention: Attention
    f16: bool
    keys: int
    caps: DeviceCaps

    @property
    def group_heads(self) -> int:
        """Query heads of one KV head."""
        return self.attention.num_heads // self.attention.num_kv_heads


def _unmet(request: AttentionRequest) -> str | None:
    """What every variant needs."""
    if request.attention.head_dim % 4:
        return f"a head dimension of {request.attention.head_dim} is not a multiple of 4"
    if request.f16 and not request.caps.f16:
        return "the adapter has no f16"
    return None


def _online_unmet(request: AttentionRequest) -> str | None:
    if common := _unmet(request):
        return common
    if not request.caps.subgroup_size:
        return request.caps.subgroup_reason
    return _storage_unmet(_group_storage(request), request)


def _split_unwise(request: AttentionRequest) -> str | None:
    if request.caps.software:
        return "a software adapter is slower with more workgroups"
    if _turns(request) <= FEW_TURNS:
        return f"{request.keys} keys are few: shares of them would not make up for the merge"
    return None


def _tiled_unmet(request: AttentionRequest) -> str | None:
    return _unmet(request) or _storage_unmet(TILES[-1].storage(request.attention.head_dim), request)


def _small_unmet(request: AttentionRequest) -> str | None:
    return _unmet(request) or _storage_unmet(SMALL_TILES[-1].storage(request.attention.head_dim), request)


def _storage_unmet(storage: int, request: AttentionRequest) -> str | None:
    limit = request.caps.max_workgroup_storage
    return f"it needs {storage} bytes of workgroup memory, the device has {limit}" if storage > limit else None


DECODE_VARIANTS: tuple[Variant[AttentionRequest], ...] = (
    Variant("decode_split", "one row, many keys: workgroups share them, then a merge", _online_unmet, _split_unwise),
    Variant("decode_online", "one row: a workgroup a KV head, lanes of a subgroup share a key", _online_unmet),
    Variant("decode_streaming", "one row, without workgroup memory or subgroups", _unmet),
)
PREFILL_VARIANTS: tuple[Variant[AttentionRequest], ...] = (
    Variant("prefill_tiled", "many rows share tiles of keys and values in workgroup memory", _tiled_unmet),
    Variant("prefill_small", "many rows share small tiles of keys and values", _small_unmet),
    Variant("prefill_streaming", "many rows, without workgroup memory", _unmet),
)


def choose(op: Op, context: KernelContext) -> Decision:
    """The variant for an attention op: of the decode ones for one row a sequence, else of the prefill ones.

    Raises KernelUnavailable where the device lacks f16 for f16 storage, or a forced variant cannot run.
    """
    variants = DECODE_VARIANTS if op.output.rows == 1 or context.batch else PREFILL_VARIANTS
    return select(variants, _request(op, context), context.preferences)


def dispatches(op: Op, decision: Decision, context: KernelContext) -> tuple[Dispatch, ...]:
    """One dispatch, or two with decode_split, whose records lie in SCRATCH between them."""
    request = _request(op, context)
    match decision.variant:
        case "decode_split":
            return _split(op, context, request)
        case "decode_online":
            return (_decode(op, context, request, splits=1),)
        case "prefill_tiled":
            return (_prefill(op, context, request, _tile(TILES, context.caps.max_workgroup_storage, request)),)
        case "prefill_small":
            return (_prefill(op, context, request, _tile(SMALL_TILES, SMALL_STORAGE, request)),)
        case _:
            return (_streaming(op, context, request),)


def scratch_bytes(op: Op, context: KernelContext) -> int:
    """Bytes of SCRATCH that the op's chosen variant needs, 0 where none. One op at a time uses it."""
    if choose(op, context).variant != "decode_split":
        return 0
    request = _request(op, context)
    return request.rows * request.attention.num_heads * _splits(request) * (request.attention.head_dim + 4) * 4


def _request(op: Op, context: KernelContext) -> AttentionRequest:
    assert isinstance(op.attributes, Attention)
    keys = min(context.kv_bucket, op.attributes.window or context.kv_bucket)
    f16 = "f16" in (op.output.dtype, context.kv_dtype)
    return AttentionRequest(op.output.rows, op.attributes, f16, keys, context.caps)


def _constants(op: Op, context: KernelContext, attention: Attention) -> dict[str, Constant]:
    q = op.inputs[0]
    return {
        "X_TYPE": op.output.dtype,
        "KV_TYPE": context.kv_dtype,
        **context.layouts[layer_of(op)].reading(),
        "NUM_HEADS": attention.num_heads,
        "NUM_KV_HEADS": attention.num_kv_heads,
        "HEAD_DIM": attention.head_dim,
        "SCALE": float(attention.scale),
        "WINDOW": attention.window or 0,
        "SOFTCAP": float(attention.softcap or 0.0),
        "SINKS": attention.sinks,
        "Q_STRIDE": q.storage.columns,
        "Q_FIRST": q.first_column,
        "BATCH": context.batch,
    }


def _bindings(op: Op, context: KernelContext, output: Binding) -> tuple[Binding, ...]:
    layout = context.layouts[layer_of(op)]
    sinks = tuple(context.weights[ref].bindings(0)[0] for ref in op.weights)
    return tensor(op.inputs[0]), output, STATE, *sinks, *layout.bindings, *layout.read_bindings


def _lanes(request: AttentionRequest) -> int:
    """Invocations that share a key: a power of two that divides its vec4s, so that none is idle."""
    quads = request.attention.head_dim // 4
    return min(request.caps.subgroup_size, 32, quads & -quads)


def _lane_groups(request: AttentionRequest) -> int:
    """Keys that a decode workgroup reads side by side: as many as its invocations and memory hold."""
    threads = min(DECODE_SUBGROUPS * min(request.caps.subgroup_size, 32), request.caps.max_invocations)
    held = request.caps.max_workgroup_storage // _group_storage(request)
    return max(1, min(threads // _lanes(request), held))


def _group_storage(request: AttentionRequest) -> int:
    """Bytes of workgroup memory for one head of one lane group: its values, largest score and sum."""
    return (request.attention.head_dim + 2) * 4


def _decode_heads(request: AttentionRequest) -> int:
    """Query heads that share their reads of a KV head in one workgroup: as many as registers and memory hold, but one
    where there are few keys."""
    if request.keys <= FEW_KEYS and not request.caps.software:
        return 1
    lane_quads = request.attention.head_dim // 4 // _lanes(request)
    heads = request.group_heads
    fitting = (
        n
        for n in range(heads, 1, -1)
        if heads % n == 0
        and n * lane_quads <= DECODE_QUADS
        and n * _lane_groups(request) * _group_storage(request) <= request.caps.max_workgroup_storage
    )
    return next(fitting, 1)


def _turns(request: AttentionRequest) -> int:
    """Turns in which one workgroup would read all the keys."""
    return -(-request.keys // (4 * _lane_groups(request)))


def _splits(request: AttentionRequest) -> int:
    """Shares of the visible keys, fixed for a program: a power of two."""
    workgroups = request.rows * request.attention.num_heads // _decode_heads(request)
    wanted = min(_turns(request) // TURNS_PER_SPLIT, MAX_SPLIT_WORKGROUPS // workgroups, MAX_SPLITS)
    return 2 ** max(1, wanted.bit_length() - 1)


def _decode(op: Op, context: KernelContext, request: AttentionRequest, splits: int) -> Dispatch:
    heads = _decode_heads(request)
    constants = _constants(op, context, request.attention) | {
        "HEADS": heads,
        "SPLITS": splits,
        "LANES": _lanes(request),
        "LANE_GROUPS": _lane_groups(request),
    }
    bindings = _bindings(op, context, SCRATCH if splits > 1 else tensor(op.output))
    grid = (request.attention.num_heads // heads, splits, request.rows)
    return Dispatch("attention/decode.wgsl", constants, bindings, grid)


def _split(op: Op, context: KernelContext, request: AttentionRequest) -> tuple[Dispatch, Dispatch]:
    splits, attention = _splits(request), request.attention
    constants: dict[str, Constant] = {
        "X_TYPE": op.output.dtype,
        "NUM_HEADS": attention.num_heads,
        "HEAD_DIM": attention.head_dim,
        "SPLITS": splits,
        "AT_ONCE": min(splits, SPLITS_AT_ONCE),
        "SIZE": MERGE_SIZE,
    }
    grid = (-(-attention.num_heads * attention.head_dim // 4 // MERGE_SIZE), request.rows, 1)
    merge = Dispatch("attention/merge.wgsl", constants, (SCRATCH, tensor(op.output), STATE), grid)
    return _decode(op, context, request, splits), merge


def _streaming(op: Op, context: KernelContext, request: AttentionRequest) -> Dispatch:
    attention = request.attention
    quads = attention.head_dim // 4
    # Many rows fill the device by themselves, so each invocation makes more of the output per key that it reads.
    chunk = 1 if request.rows == 1 else min(4, quads & -quads)
    constants = _constants(op, context, attention) | {"CHUNK": chunk, "SIZE": STREAMING_SIZE}
    invocations = attention.num_heads * quads // chunk
    grid = (-(-invocations // STREAMING_SIZE), request.rows, 1)
    return Dispatch("attention/streaming.wgsl", constants, _bindings(op, context, tensor(op.output)), grid)


def _tile(tiles: tuple[Tile, ...], storage: int, request: AttentionRequest) -> Tile:
    """The first tile in `storage` bytes of workgroup memory that the queries fill once or more, else the last."""
    head_dim, queries = request.attention.head_dim, request.rows * request.group_heads
    fitting = (
        tile
        for tile in tiles
        if tile.storage(head_dim) <= storage and tile.words(head_dim) <= MOST_WORDS and tile.queries <= queries
    )
    return next(fitting, tiles[-1])


def _prefill(op: Op, context: KernelContext, request: AttentionRequest, tile: Tile) -> Dispatch:
    constants = _constants(op, context, request.attention) | {
        "QUERIES": tile.queries,
        "COLUMNS": tile.columns,
        "KEYS": tile.keys,
        "THREAD_QUERIES": tile.thread_queries,
        "STAGE_QUERIES": tile.stage_queries,
    }
    grid = (request.attention.num_kv_heads, -(-request.rows * request.group_heads // tile.queries), 1)
    return Dispatch("attention/prefill.wgsl", constants, _bindings(op, context, tensor(op.output)), grid)
