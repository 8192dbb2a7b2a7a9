"""Finds the app that the command line names."""

import importlib
import importlib.util
import os
import sys
from types import ModuleType

from everbeat.app import App


class NotFound(Exception):
    """There is no such app. The message says what to do."""


def load(reference: str) -> App:
    """The app of ``module:name`` or ``path/to/file.py:name``; the name is ``app`` unless given.

    What the user's module raises while it is imported passes through.
    """
    place, _, name = reference.partition(":")
    name = name or "app"
    if not place:
        raise NotFound(f"{reference!r} names no module: write it like tasks:app")
    module = _from_file(place) if _is_path(place) else _from_name(place)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise NotFound(f"{place!r} has no {name!r}; {_apps_in(module, place)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise NotFound(f"{reference!r} is a {type(found).__name__}, not an everbeat.App; {_apps_in(module, place)}")
    return found


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(f"there is no module {error.name!r} in {os.getcwd()} or on the Python path") from None
        raise


def _from_file(path: str) -> ModuleType:
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path}")
    name = os.path.splitext(os.path.basename(path))[0]
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise NotFound(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _apps_in(module: ModuleType, place: str) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "it has no everbeat.App at all"
    return "it has " + " and ".join(f"{place}:{name}" for name in names)
