"""All of Flower that is not its public interface, in one place.

``tests/flower/test_flower_internals.py`` has what is expected of each name, and says which one
broke when another version of Flower is tried.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app.error import Error
from flwr.app.message import make_message
from flwr.common.constant import TIMESTAMP_HEADER, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TaskType,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.date import now
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

__all__ = [
    "AcquireTaskRequest",
    "ActivateNodeRequest",
    "ControlHttpClient",
    "DeactivateNodeRequest",
    "Error",
    "ErrorCode",
    "Fab",
    "FleetHttpClient",
    "HttpGrid",
    "Node",
    "NodeAuthHttpInterceptor",
    "ObjectTree",
    "ProtobufCall",
    "ProtobufRequestContext",
    "PullAppMessagesRequest",
    "PullMessagesRequest",
    "PullMessagesResponse",
    "PullTaskInputRequest",
    "PushAppMessagesRequest",
    "PushMessagesRequest",
    "PushTaskOutputRequest",
    "RegisterNodeFleetRequest",
    "RegisterNodeRequest",
    "RuntimeHttpClient",
    "RuntimeVersionHttpInterceptor",
    "SendNodeHeartbeatRequest",
    "SendTaskHeartbeatRequest",
    "StartRunRequest",
    "SuperExecAuthHttpInterceptor",
    "TaskIdentity",
    "TaskType",
    "add_headers",
    "generate_key_pairs",
    "make_message",
    "message_from_proto",
    "message_to_proto",
    "public_key_to_bytes",
    "run_from_proto",
]

SUPERLINK = (
    "import sys; from flwr.supercore.app_utils import start_parent_process_monitor as watch;"
    "watch(int(sys.argv.pop(1)));"
    "from flwr.superlink.cli.flower_superlink import flower_superlink; flower_superlink()"
)


def __getattr__(name: str) -> Any:
    """Import the grid when it is asked for: it is the coordinator's alone, and slow to import."""
    if name != "HttpGrid":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flwr.superlink.grid import HttpGrid

    return HttpGrid


def node_key() -> ec.EllipticCurvePrivateKey:
    """Make a key of a kind that Flower takes for a node."""
    return ec.generate_private_key(ec.SECP256R1())


def signed_time(private: ec.EllipticCurvePrivateKey) -> dict[str, str]:
    """Return the headers by which Flower knows a node: its key, and the time, signed."""
    when = now().isoformat()
    signature = sign_message(private, when.encode("ascii"))
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: _text(public_key_to_bytes(private.public_key())),
        TIMESTAMP_HEADER: when,
        FLEET_HTTP_SIGNATURE_HEADER: _text(signature),
    }


def as_node(body: bytes, private: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a request for activation that names another key than it did."""
    asked = ActivateNodeRequest()
    asked.ParseFromString(body)
    asked.public_key = public_key_to_bytes(private.public_key())
    named: bytes = asked.SerializeToString()
    return named


def named_node(body: bytes) -> int:
    """Return the node that an answer to a request for activation names."""
    answer = ActivateNodeResponse()
    answer.ParseFromString(body)
    node: int = answer.node_id
    return node


def node_headers(public: bytes) -> dict[str, str]:
    """Return the header by which a node says who it is."""
    return {FLEET_HTTP_PUBLIC_KEY_HEADER: _text(public)}


def _text(blob: bytes) -> str:
    return base64.b64encode(blob).decode("ascii")
