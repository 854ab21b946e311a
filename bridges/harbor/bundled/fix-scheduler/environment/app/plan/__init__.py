"""Plans: which task runs when, and on which worker."""

from plan.graph import Graph, Cycle
from plan.schedule import schedule
