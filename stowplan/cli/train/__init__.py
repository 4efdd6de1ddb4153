"""``stowplan train``: learned policies, one module for each agent."""

from __future__ import annotations

from stowplan.cli.train.egrl import egrl_command
from stowplan.cli.train.muzero import muzero_command
from stowplan.cli.train.ppo import ppo_command

#: The agents, by the name of their command. To add one, add its module here.
COMMANDS = {"muzero": muzero_command, "egrl": egrl_command, "ppo": ppo_command}
