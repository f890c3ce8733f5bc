"""The garbage collector while a large library is imported."""

import gc
import sys
from types import ModuleType

import pytest

from rollcast.engine.heap import imported


def test_it_rests_for_the_first_import_and_what_is_there_is_not_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gc.get_freeze_count()
    with imported("a_large_library"):
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        monkeypatch.setitem(sys.modules, "a_large_library", ModuleType("a_large_library"))
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)
    frozen = gc.get_freeze_count()
    with imported("a_large_library"):
        assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen


def test_it_goes_on_after_an_error_and_not_where_it_was_off() -> None:
    with pytest.raises(ImportError), imported("a_missing_library"):
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with imported("a_missing_library"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
