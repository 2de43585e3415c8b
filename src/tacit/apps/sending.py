"""Flower's grid, with heads of messages alone: what they carry goes by the post."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from tacit.apps.flower_internals import (
    Error,
    ErrorCode,
    HttpGrid,
    PullAppMessagesRequest,
    PushAppMessagesRequest,
    make_message,
    message_from_proto,
)
from tacit.apps.message_heads import head, telling
from tacit.apps.post import Post
from tacit.core import BadInput

LOOK = 2.0  # seconds after which Flower is asked for answers of which no word has come


class PostGrid(HttpGrid):
    """Sends all messages with one call, and asks for answers when there are some."""

    post: Post

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids, empty for those that Flower does not take."""
        letters = list(messages)
        if not letters:
            return []
        heads = [head(m) for m in letters]
        for letter, one in zip(letters, heads, strict=True):
            about = one.metadata
            self.post.prepare(about.message_id, about.dst_node_id, letter.content, about.ttl)
        told = [telling(one) for one in heads]
        answer = self._runtime_client.PushMessages(
            PushAppMessagesRequest(
                messages_list=[t.messages_list[0] for t in told],
                message_object_trees=[t.message_object_trees[0] for t in told],
            )
        )
        for one, tell, taken in zip(heads, told, answer.message_ids, strict=True):
            if taken:
                self.post.notify(taken, tell.SerializeToString())
            else:
                self.post.forget(one.metadata.message_id)
        ids: list[str] = list(answer.message_ids)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Wait a moment for an announcement; return the answers that are there."""
        self.post.wait(LOOK)
        wanted = PullAppMessagesRequest(message_ids=list(message_ids))
        got = self._runtime_client.PullMessages(wanted)
        return [self._whole(one) for one in got.messages_list]

    def _whole(self, one: Any) -> Message:
        """Return an answer with what it carries; whatever is wrong with it, it alone is lost."""
        answer: Message = message_from_proto(one)
        if answer.has_error():
            return answer
        about = answer.metadata
        try:
            content = self.post.take(about.reply_to_message_id)
        except Exception as e:
            why = str(e) if isinstance(e, BadInput) else f"cannot be read ({type(e).__name__})"
            return make_message(metadata=about, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, why))
        return make_message(metadata=about, content=content)
