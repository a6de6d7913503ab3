"""What can be copied: a reply's answer, its code, all that the model wrote, the chosen message."""

from __future__ import annotations

from collections.abc import Callable

from app.clipboard import size_of
from app.code_blocks import code_blocks
from app.conversation import split_thought
from app.screens.conversation_control import ConversationControl
from app.screens.message_control import MessageControl
from app.store.records import Message

_USAGE = "/copy takes nothing, code, code N, raw or message"


class CopyControl:
    """Finds what is asked for. `copy` is given the raw text and what it is, `hint` shows a passing message."""

    def __init__(
        self,
        conversation: ConversationControl,
        messages: MessageControl,
        copy: Callable[[str, str], object],
        hint: Callable[[str], None],
    ) -> None:
        self._conversation = conversation
        self._messages = messages
        self._copy = copy
        self._hint = hint

    def run(self, argument: str) -> None:
        """Do what `/copy ARGUMENT` asks for; replies are the chosen one, or else the last one."""
        what, _, rest = argument.partition(" ")
        if what == "message" and not rest:
            self._copy_chosen()
        elif what not in ("", "raw", "code") or (rest and what != "code"):
            self._hint(f"{_USAGE}, not {argument}.")
        elif (reply := self._reply()) is None:
            self._hint("There is no reply to copy yet.")
        elif what == "code":
            self._copy_code(reply, rest.strip())
        elif what == "raw":
            self._copy(reply.text, f"the whole reply ({size_of(reply.text)})")
        elif answer := split_thought(reply)[1]:
            self._copy(answer, f"the reply ({size_of(answer)})")
        else:
            self._hint("The reply has no answer to copy; /copy raw takes the thought.")

    def chosen(self) -> None:
        """Copy the chosen message, or the last reply's answer."""
        self.run("message" if self._messages.chosen else "")

    def _reply(self) -> Message | None:
        tree, chosen = self._conversation.tree, self._messages.chosen
        nodes = [chosen] if chosen and chosen.role == "assistant" else reversed(tree.path())
        return next((tree.loaded(node.id) for node in nodes if node.role == "assistant"), None)

    def _copy_chosen(self) -> None:
        chosen = self._messages.chosen
        message = self._conversation.tree.loaded(chosen.id) if chosen else None
        if message is None:
            self._hint("No message is chosen; alt+up chooses one.")
        else:
            self._copy(message.text, f"the message ({size_of(message.text)})")

    def _copy_code(self, reply: Message, number: str) -> None:
        blocks = code_blocks(split_thought(reply)[1])
        if not blocks:
            self._hint("The reply has no code.")
        elif number and not (number.isdecimal() and 0 < int(number) <= len(blocks)):
            self._hint(f"The reply has code blocks 1 to {len(blocks)}, and none is {number}.")
        else:
            index = int(number or len(blocks))
            block = blocks[index - 1]
            parts = ", ".join(part for part in (block.language, size_of(block.code)) if part)
            self._copy(block.code, f"code block {index} of {len(blocks)} ({parts})")
