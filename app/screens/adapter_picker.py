"""The picker of LoRA adapters: a tree of folders that shows adapters only, and a box for a path or a name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DirectoryTree, Input
from textual.widgets.directory_tree import DirEntry
from textual.widgets.tree import TreeNode

from app.sanitize import visible
from app.theme import make_look
from inference.lora.recognise import is_adapter


class AdapterTree(DirectoryTree):
    """Folders, and of what is in them the adapters: PEFT folders and GGUF files."""

    ICON_NODE, ICON_NODE_EXPANDED, ICON_FILE = "▸ ", "▾ ", "  "
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("backspace", "outwards", "The folder above", show=False, id="adapters.outwards"),
    ]

    def __init__(self, path: Path, *, id: str | None = None) -> None:
        super().__init__(path, id=id)
        self._adapters: set[Path] = set()

    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        """Called for each folder that is opened, on a thread of its own."""
        shown = [path for path in paths if not path.name.startswith(".")]
        adapters = {path for path in shown if is_adapter(path)}
        self._adapters |= adapters
        return [path for path in shown if path in adapters or path.is_dir()]

    def render_label(self, node: TreeNode[DirEntry], base_style: Style, style: Style) -> Text:
        """A folder or an adapter."""
        look = make_look(self.app.theme_variables)
        assert node.data is not None
        if node.data.path in self._adapters:
            return Text.assemble(
                "● ", visible(node.data.path.name), (" adapter", look.muted), style=style + look.accent
            )
        icon = self.ICON_NODE_EXPANDED if node.is_expanded else self.ICON_NODE
        return Text.assemble(icon, visible(str(node.label)), style=style)

    def action_outwards(self) -> None:
        """Show the folder above."""
        self.path = Path(self.path).absolute().parent


class AdapterPicker(ModalScreen[str | None]):
    """Returns what was chosen or typed, or None."""

    DEFAULT_CSS = """
    AdapterPicker { align: center middle; }
    AdapterPicker Vertical {
        width: 84; max-width: 96%; height: 80%; max-height: 92%;
        padding: 1 1 0 1; border: round $border; background: $background;
        border-title-color: $primary; border-subtitle-color: $foreground 65%;
    }
    AdapterPicker DirectoryTree {
        height: 1fr; background: $background; scrollbar-size: 1 1;
        &:focus { background-tint: transparent; }
    }
    AdapterPicker Input { border: round $border; background: $background; margin-top: 1; }
    AdapterPicker Input:focus { border: round $primary; }
    """
    HELP = """# Adding an adapter

    A tree of folders that shows LoRA adapters only: PEFT folders and GGUF files. Enter opens a folder or loads an
    adapter; tab goes to the box for a path or a name on the hub, with a strength after =."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", id="adapters.close"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Add an adapter"
            box.border_subtitle = "enter opens or loads · backspace up · tab path · esc closes"
            yield AdapterTree(self._folder, id="adapter-tree")
            yield Input(placeholder="a path, or org/repo on the hub; =0.5 sets the strength")

    def on_directory_tree_file_selected(self, event: DirectoryTree.FileSelected) -> None:
        self.dismiss(str(event.path))

    def on_directory_tree_directory_selected(self, event: DirectoryTree.DirectorySelected) -> None:
        if is_adapter(event.path):
            self.dismiss(str(event.path))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """A folder that is no adapter is shown; anything else is what the person wants."""
        typed = event.value.strip()
        folder = os.path.expanduser(typed)
        if typed and os.path.isdir(folder) and not is_adapter(Path(folder)):
            tree = self.query_one(AdapterTree)
            tree.path = Path(folder).absolute()
            tree.focus()
        elif typed:
            self.dismiss(typed)
