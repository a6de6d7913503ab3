"""From a model file to the weights that a plan names: checked against the config, stacked, widened where needed."""

from __future__ import annotations

from inference.errors import BadModelFile, UnsupportedModel
from inference.formats.gguf import GGUFFile
from inference.formats.planar import FORMATS, PlanarTensor, concat_rows, from_ggml, widen
from inference.models.config import ModelConfig
from inference.models.weights import layer_tensor
from inference.plan.fuse import common_format
from inference.plan.ops import Plan, WeightRef


class WeightStore:
    """The weights of one GGUF file under their canonical names. Reads nothing until a weight is asked for."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._names = config.weights
        self.formats = {canonical: _format(file, name) for canonical, name in config.weights.items()}
        used = set(config.weights.values())
        self.unused = tuple(name for name in file.tensors if name not in used and name != "rope_freqs.weight")

    def check(self, plan: Plan) -> None:
        """Raises BadModelFile for the first weight of the plan that is missing or has another shape."""
        for op in plan.ops:
            for ref in op.weights:
                # Unfused plans name each weight alone, so its rows are those of the tensor.
                (source,) = ref.sources
                self._check(source, ref)

    def tensor_names(self, ref: WeightRef) -> tuple[str, ...]:
        """The file's tensors behind a weight: equal for an embedding and a head that are tied."""
        return tuple(self._names[source] for source in ref.sources)

    def load(self, ref: WeightRef) -> PlanarTensor:
        """The weight as (rows, columns) in its planar format; stacked sources share their common format."""
        shared = common_format(ref.sources, self.formats)
        assert shared is not None, "fusion stacks only weights that share a format"
        return concat_rows([self._load(source, shared) for source in ref.sources])

    def _load(self, source: str, format_name: str) -> PlanarTensor:
        name = self._names[source]
        info = self._file.tensors[name]
        rows = 1 if len(info.shape) == 1 else info.shape[0]
        tensor = from_ggml(info.type, self._file.data(name), rows, info.shape[-1])
        return tensor if tensor.format.name == format_name else widen(tensor, format_name)

    def _check(self, source: str, ref: WeightRef) -> None:
        where = self._file.path.name
        name = self._names.get(source)
        if name is None:
            # Only tensors of layers can be absent here: the family's reader has asked for the others.
            _, layer, part = source.split(".", 2)
            missing = layer_tensor(int(layer), part)
            raise BadModelFile(f"{where}: tensor {missing} is missing; fetch the file again or convert it anew")
        shape = self._file.tensors[name].shape
        expected = (ref.rows, ref.columns) if ref.rows > 1 else (ref.columns,)
        if shape != expected:
            raise BadModelFile(f"{where}: tensor {name} has shape {shape}, expected {expected} from the metadata")


def _format(file: GGUFFile, name: str) -> str:
    ggml_type = file.tensors[name].type
    if ggml_type.lower() not in FORMATS:
        known = ", ".join(known.upper() for known in FORMATS)
        raise UnsupportedModel(
            f"{file.path.name}: tensor {name} has type {ggml_type}, which is not supported (only {known}); "
            "use another quantisation of this model, such as Q8_0 or Q4_K_M"
        )
    return ggml_type.lower()
