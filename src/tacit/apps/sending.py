"""Flower's grid, but one reply that never arrives in full does not hold up the others."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, Metadata

from tacit.apps.flower_internals import (
    ConfirmMessageReceivedRequest,
    Error,
    ErrorCode,
    HttpGrid,
    PullAppMessagesRequest,
    inflate_object_from_contents,
    iterate_object_tree,
    make_message,
    make_pull_object_fn_protobuf,
    pull_objects,
)


class PatientGrid(HttpGrid):
    """Fetches each reply in a thread of its own.

    Flower announces a reply before its parts are there.
    """

    deadline = 600.0  # seconds for the parts of one reply

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._done: dict[str, Message] = {}  # by the message they reply to
        self._fetching: set[str] = set()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are complete."""
        wanted = [i for i in message_ids if i not in self._fetching]
        if wanted:
            got = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
            for head, tree in zip(got.messages_list, got.message_object_trees, strict=True):
                self._fetching.add(head.metadata.reply_to_message_id)
                threading.Thread(
                    target=self._fetch, args=(head.metadata, tree), daemon=True
                ).start()
        ready = [i for i in list(self._done) if i in set(message_ids)]
        return [self._done.pop(i) for i in ready]

    def _fetch(self, about: Any, tree: Any) -> None:
        run, fetch = self.run.run_id, self._runtime_client.PullObject
        try:
            ids = [t.object_id for t in iterate_object_tree(tree)]
            one = make_pull_object_fn_protobuf(fetch, self.node, run)
            contents = pull_objects(
                ids, one, max_time=self.deadline, max_tries_per_object=None, backoff_cap=2.0
            )
            confirm = ConfirmMessageReceivedRequest(
                node=self.node, run_id=run, message_object_id=about.message_id
            )
            self._runtime_client.ConfirmMessageReceived(confirm)
            message: Any = inflate_object_from_contents(about.message_id, contents)
        except Exception as e:  # whatever a site has sent: it is that site's reply which is lost
            message = self._lost(about, e)
        self._done[about.reply_to_message_id] = message

    def _lost(self, about: Any, error: Exception) -> Message:
        """Return the message that stands for a reply that did not arrive."""
        metadata = Metadata(
            run_id=about.run_id,
            message_id="",
            src_node_id=about.src_node_id,
            dst_node_id=about.dst_node_id,
            reply_to_message_id=about.reply_to_message_id,
            group_id="",
            created_at=about.created_at,
            ttl=0,
            message_type=about.message_type,
        )
        reason = f"the reply did not arrive in full: {type(error).__name__}"
        return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
