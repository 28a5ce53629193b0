"""What each operation does, in terms of positions and channels.

One walk over the graph gives every node the meaning of its dimensions (:mod:`.axes`) and a set
of facts. It does not use the name or class of a module, but only which axes an operation mixes, and
whether with learned weights, with normalised weights computed from the image, or with fixed ones.
"""

from __future__ import annotations

from torch import fx

from retinoscope.anatomy.graph.flow import Flow
from retinoscope.anatomy.reading.facts import Fact
from retinoscope.anatomy.reading.reader import Meaning, Reader
from retinoscope.anatomy.reading.rules import mixing, moving, pointwise

RULES = pointwise.RULES | mixing.RULES | moving.RULES


def meanings(flow: Flow) -> tuple[dict[fx.Node, Meaning], dict[fx.Node, set[Fact]]]:
    """The meaning of every node that depends on the image, and the facts about it."""
    reader = Reader(flow, RULES)
    for node in flow.dependent:
        reader.read(node)
    return reader.meaning, reader.facts
