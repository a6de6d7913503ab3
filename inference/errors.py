"""The errors that reach a person.

Each message names what was found, where, what was expected, and what to do. The command line
prints the message alone, on one line, and exits with 1; the chat shows it in the transcript.
"""


class GlasschatError(Exception):
    """Base of every error that is meant for the person at the keyboard."""


class ModelNotFound(GlasschatError):
    """The named model is neither a file, nor in the catalogue, nor reachable from any source."""


class UnsupportedModel(GlasschatError):
    """The file is sound but its family, tensor type or tokenizer is not one that is known here."""


class BadModelFile(GlasschatError):
    """The file is damaged, truncated or contradicts itself."""


class DoesNotFit(GlasschatError):
    """Weights, KV cache or scratch exceed the device's memory or limits."""


class DeviceUnavailable(GlasschatError):
    """The device asked for does not exist here, or lacks what the request needs."""


class DeviceLost(GlasschatError):
    """The GPU stopped answering."""


class BadAdapter(GlasschatError):
    """A LoRA adapter is damaged, of a kind that is not supported, or was made for another model."""


class BadTemplate(GlasschatError):
    """The model's chat template cannot be parsed or refuses this conversation."""


class ContextFull(GlasschatError):
    """The tokens asked for exceed the context length."""


class KernelUnavailable(GlasschatError):
    """A kernel variant was forced by name and one of its requirements does not hold."""


class BadCatalog(GlasschatError):
    """A catalogue file is missing, is not TOML, or lacks or mistypes a key."""


class FetchFailed(GlasschatError):
    """A model could not be downloaded or failed its checksum."""


class Cancelled(GlasschatError):
    """The person cancelled a long piece of work (a download, a load)."""


class LayoutUnavailable(GlasschatError):
    """A KV layout was asked for that does not exist or that this model cannot use."""


class NotWritten(GlasschatError):
    """A file that was asked for cannot be written."""


class BatchRefused(GlasschatError):
    """Sequences were to be decoded in one step that cannot be."""
