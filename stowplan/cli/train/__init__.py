"""``stowplan train``: learned policies, one module for each agent, named in :mod:`stowplan.cli.app`."""
