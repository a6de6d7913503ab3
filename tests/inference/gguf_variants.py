"""Model files made from a tiny one by changing a few things, written by the `gguf` package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

QuantType = gguf.GGMLQuantizationType


def rewrite(
    source: Path,
    target: Path,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    types: Mapping[str, QuantType] | None = None,
    without: Collection[str] = (),
) -> Path:
    """Copy `source` to `target` with other metadata values and tensors (float32), and `without` some of either.

    `types` quantises the named tensors. Metadata that is not in `source` is added. Another general.architecture renames
    what is said of the one there was. Returns `target`.
    """
    reader = gguf.GGUFReader(source)
    values = dict(metadata or {})
    arrays = dict(tensors or {})
    before = reader.fields["general.architecture"].contents()
    architecture = values.pop("general.architecture", before)
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name in without:
            continue
        name = field.name.replace(f"{before}.", f"{architecture}.") if field.name.startswith(before) else field.name
        value = values.pop(name, field.contents())
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, value, field.types[0], sub_type)
    for name, value in values.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        if tensor.name in without:
            continue
        array, kind = tensor.data, tensor.tensor_type
        if tensor.name in arrays:
            array, kind = arrays.pop(tensor.name), QuantType.F32
        if types and tensor.name in types:
            weights = gguf.quants.dequantize(array, kind)
            kind = types[tensor.name]
            array = gguf.quants.quantize(weights, kind)
        writer.add_tensor(tensor.name, array, raw_dtype=kind)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
