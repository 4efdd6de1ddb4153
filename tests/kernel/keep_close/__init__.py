"""Plans that keep close to earlier ones."""
