"""Every table and figure of the paper by its name: one TOML file each, beside this module."""
