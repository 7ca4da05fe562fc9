"""The lowest versions that pyproject.toml allows are read as they are written."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.house import floors


def test_a_floor_becomes_a_pin_and_the_ceiling_goes() -> None:
    """A floor becomes a pin and the ceiling goes."""
    found = floors.floors(["numpy>=1.26", "Proto_buf >= 6.33.5,<8", "uvloop>=0.21; sys_platform != 'win32'"])
    assert found == {
        "numpy": "numpy==1.26",
        "proto-buf": "Proto_buf==6.33.5",
        "uvloop": "uvloop==0.21; sys_platform != 'win32'",
    }


@pytest.mark.parametrize("requirement", ["rich", "rich<14", "rich==13.7"])
def test_a_requirement_without_a_floor_is_an_error(requirement: str) -> None:
    """A requirement without a floor is an error."""
    with pytest.raises(ValueError, match="no floor"):
        floors.floors([requirement])


def test_constraints_on_what_is_pinned_are_left_out() -> None:
    """Constraints on what is pinned are left out."""
    text = "# comment\nNum_Py==2.4.6\npytest==9.2.0\n\nale-py==0.12.1\n"
    assert floors.remaining(text, ["num-py", "ale-py"]) == "pytest==9.2.0"


def test_every_base_dependency_of_the_project_has_a_floor_that_is_tested() -> None:
    """Every base dependency of the project has a floor that is tested."""
    project = tomllib.loads((floors.ROOT / "pyproject.toml").read_text())["project"]
    pinned = floors.floor_requirements(project)
    assert len(pinned) == len(project["dependencies"]) + 3
    assert pinned["protobuf"] == "protobuf==6.33.5"


def test_the_generated_code_runs_on_the_lowest_protobuf() -> None:
    """The generated code runs on the lowest protobuf."""
    code = (floors.ROOT / "asyncrl/wire/_generated/env_pb2.py").read_text()
    found = re.search(r"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),\s*(\d+),", code)
    assert found is not None
    project = tomllib.loads((floors.ROOT / "pyproject.toml").read_text())["project"]
    floor = floors.floor_requirements(project)["protobuf"].partition("==")[2]
    assert [int(number) for number in found.groups()] <= [int(number) for number in floor.split(".")]
