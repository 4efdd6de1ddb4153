"""How plans of rematerialization are shown."""
