"""JSON as it goes to the server."""

import json
from typing import Any


class NotJson(ValueError):
    """A value that JSON has no form for. The message names the type at fault."""


def encode(value: Any, what: str) -> str:
    """The JSON text of a value; ``what`` names the value in the error."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode("utf-8")
    except TypeError:
        raise NotJson(f"{what} is not JSON: it holds a value of type {_culprit(value)}") from None
    except UnicodeEncodeError:
        raise NotJson(f"{what} is not JSON: it holds half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise NotJson(f"{what} is not JSON: {error}") from None
    return text


def _culprit(value: Any) -> str:
    """The name of the first type in a value that JSON has no form for."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                return f"{_name(key)} (as a key)"
            found = _culprit(item)
            if found:
                return found
        return ""
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_culprit, value)), "")
    return "" if value is None or isinstance(value, (str, int, float)) else _name(value)


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
