# SPDX-License-Identifier: Apache-2.0
"""covey: elastic, fault-tolerant collective communication.

    import covey, numpy as np

    with covey.join() as group:                 # under ep-run, torchrun, mpirun or Slurm
        x = np.ones(4, np.float32)
        outcome = group.allreduce(x)            # in place; outcome.ranks took part
        print(group.rank, x, sorted(outcome.ranks))

A rank may be killed at any moment: every survivor gets the same outcome, milliseconds later. Replacements and new ranks
come in at Group.admit(). Errors are exceptions of covey.errors: they carry rank, epoch, operation and cause.
"""

from ._abi import (Admission, Create, Dtype, EpArrived, EpCombineAs, EpPreset, EpRowsAs, EventKind, OnLoss, Redop,
                   Transport)
from ._library import VERSION as __version__
from .ep import ARRIVED, Ep, Routed, from_bf16, to_bf16
from .errors import CallError, Error, HandleError, LossError, ProcessError
from .group import Group, grouped, join
from .outcome import Event, Outcome, View, Work
from . import errors

__all__ = ["ARRIVED", "Admission", "CallError", "Create", "Dtype", "Ep", "EpArrived", "EpCombineAs", "EpPreset",
           "EpRowsAs", "Error", "Event", "EventKind", "Group", "HandleError", "LossError", "OnLoss", "Outcome", "ProcessError", "Redop", "Routed",
           "Transport", "View", "Work", "errors", "from_bf16", "grouped", "join", "to_bf16"]
