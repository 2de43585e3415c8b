"""Messages of Flower's that carry nothing: the head alone, for what goes by the post."""

from __future__ import annotations

from typing import Any

from flwr.app import Message, RecordDict

from tacit.apps.flower_internals import (
    ObjectTree,
    PullMessagesResponse,
    make_message,
    message_to_proto,
)


def head(message: Message) -> Message:
    """Return a message that carries nothing, under an id of its own."""
    about: Any = message.metadata
    made: Message = make_message(metadata=about, content=RecordDict())
    about.__dict__["_message_id"] = made.object_id
    return made


def telling(message: Message) -> Any:
    """Return how a node is told of a message, as Flower does: one that has a single part."""
    return PullMessagesResponse(
        messages_list=[message_to_proto(message)],
        message_object_trees=[ObjectTree(object_id=message.metadata.message_id)],
    )
