"""One file per published method. May import core, privacy, local, data; never engines."""

from __future__ import annotations

from tacit.core import Method
from tacit.methods.centralised import Centralised
from tacit.methods.cl_fl import CLFL
from tacit.methods.cuag import CUAG
from tacit.methods.dafl import DAFL
from tacit.methods.dp_fedavg import DPFedAvg
from tacit.methods.dp_scaffold import DPScaffold
from tacit.methods.fedavg import FedAvg
from tacit.methods.fedmix import FedMix
from tacit.methods.fednova import FedNova
from tacit.methods.fedprox import FedProx
from tacit.methods.gfl import GFL
from tacit.methods.kd_dpfl import KDDPFL
from tacit.methods.ldp_fl import LDPFL
from tacit.methods.local import Local
from tacit.methods.moments import Moments
from tacit.methods.nbafl import NbAFL
from tacit.methods.pate import PATE
from tacit.methods.pfldyn import PFLDyn
from tacit.methods.prifedsync import PriFedSync
from tacit.methods.scaffold import Scaffold
from tacit.methods.udp import UDP

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedmix": FedMix,
    "centralised": Centralised,
    "local": Local,
    "ldp_fl": LDPFL,
    "dp_fedavg": DPFedAvg,
    "dp_scaffold": DPScaffold,
    "cl_fl": CLFL,
    "nbafl": NbAFL,
    "udp": UDP,
    "pfldyn": PFLDyn,
    "prifedsync": PriFedSync,
    "cuag": CUAG,
    "moments": Moments,
    "dafl": DAFL,
    "gfl": GFL,
    "kd_dpfl": KDDPFL,
    "pate": PATE,
}
