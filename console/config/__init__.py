"""config.toml to a frozen Config; every error names the key, its line, what was given and what is allowed."""

from console.config.errors import ConfigError, ConfigErrors
from console.config.loading import load, parse
from console.config.schema import Config

__all__ = ["Config", "ConfigError", "ConfigErrors", "load", "parse"]
