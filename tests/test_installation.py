"""What is installed: small, whole, and its command starts whatever lies on PYTHONPATH.

A wheel and an editable install, each in an environment of its own, built without the network; what
we depend on is lent by the environment that runs the tests.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_BYTES = 3_000_000  # of which 1.2 MB are the built-in task's taught model
DECOYS = ("simulator", "engine", "calibration")


def call(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    succeeded(call(*pip, "--wheel-dir", folder, ROOT, cwd=folder))
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def scripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of a fresh environment that rollcast is installed in."""
    home = tmp_path_factory.mktemp(request.param)
    venv.create(home, symlinks=True)
    names = {"base": str(home), "platbase": str(home)}
    packages = Path(sysconfig.get_path("purelib", "venv", names))
    folder = Path(sysconfig.get_path("scripts", "venv", names))
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    asked = (
        ["--editable", ROOT] if request.param == "editable" else [request.getfixturevalue("wheel")]
    )
    pip = (sys.executable, "-m", "pip", "--python", folder / "python", "install", "--quiet")
    succeeded(call(*pip, "--no-compile", "--no-deps", "--no-build-isolation", *asked, cwd=home))
    where = call(folder / "python", "-c", "import rollcast; print(rollcast.__file__)", cwd=home)
    at = Path(succeeded(where).strip()).resolve()
    assert at.is_relative_to(packages.resolve() if request.param == "wheel" else ROOT)
    return folder


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder as people have it who train with RL: packages of their own with our names."""
    for name in DECOYS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('wrong {name}')\n")
    return tmp_path


def test_a_wheel_is_small_and_has_what_it_needs(wheel: Path) -> None:
    assert wheel.stat().st_size <= MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [at] = [name for name in names if name.endswith("/METADATA")]
        metadata, metadata_folder = archive.read(at).decode(), at.split("/")[0]
    examples = {f.name for f in (ROOT / "examples").iterdir() if f.suffix in (".yaml", ".csv")}
    assert {f"rollcast/examples/{name}" for name in examples} <= names
    assert {name.split("/")[0] for name in names} == {"rollcast", metadata_folder}
    assert {f"rollcast/{p}/__init__.py" for p in DECOYS} <= names
    assert {"rollcast/py.typed", "rollcast/__init__.pyi"} <= names
    pages = {
        "rollcast/simulator/report/page.css",
        "rollcast/simulator/report/page.js",
        "rollcast/simulator/explore/explore.css",
    }
    assert pages <= names
    assert not [name for name in names if "benchmarks" in name]
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    for line in (
        "License-Expression: Apache-2.0",
        "Classifier: Private :: Do Not Upload",
        "Classifier: Typing :: Typed",
        "Author: The rollcast authors",
    ):
        assert line in metadata.splitlines()
    assert "\nKeywords: " in metadata
    assert "-URL: " not in metadata


def test_a_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = (sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    succeeded(call(*build, cwd=ROOT))
    [packed] = tmp_path.glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    succeeded(call(*pip, "--wheel-dir", tmp_path, packed, cwd=tmp_path))
    [again] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_the_command_starts_beside_packages_with_our_names(scripts: Path, decoys: Path) -> None:
    """From PYTHONPATH and from the working directory, as a script and as a module."""
    where = {"cwd": decoys, "PYTHONPATH": str(decoys)}
    for command in ([scripts / "rollcast"], [scripts / "python", "-m", "rollcast"]):
        said = succeeded(call(*command, "--help", **where))
        assert all(f"  {name} " in said for name in ("simulate", "run", "calibrate", "validate"))
        assert "wrong" not in said


def test_an_example_is_found_and_simulated(scripts: Path, decoys: Path) -> None:
    where = {"cwd": decoys, "PYTHONPATH": str(decoys)}
    find = (
        "import sys; sys.path.remove(sys.argv[1]); sys.path = [p for p in sys.path if p];"
        "from rollcast.simulator.cli.init import folder; print(folder())"
    )
    found = succeeded(call(scripts / "python", "-c", find, decoys, **where)).strip()
    asked = ("simulate", Path(found) / "trace.yaml", "--set", "steps=2", "--out", "out")
    succeeded(call(scripts / "rollcast", *asked, "--no-plot", "--draws", "0", **where))
    assert (decoys / "out" / "summary.json").is_file()


def test_packages_with_our_old_names_stay_the_users(scripts: Path, decoys: Path) -> None:
    (decoys / "engine" / "__init__.py").write_text("MINE = 1\n")
    code = "import rollcast.engine.options, engine; print(engine.MINE, rollcast.engine.__name__)"
    done = call(scripts / "python", "-W", "error", "-c", code, cwd=decoys, PYTHONPATH=str(decoys))
    assert succeeded(done).split() == ["1", "rollcast.engine"]


@pytest.mark.parametrize("first", ["import rollcast", "import rollcast.simulator.core.plan"])
def test_old_names_give_the_same_modules_and_a_warning(
    scripts: Path, tmp_path: Path, first: str
) -> None:
    """For one version, and not as copies: a plan of either name is the other's."""
    code = (
        f"{first}; from simulator.plan import StepPlan; import simulator.policies.april as old;"
        "from rollcast.simulator.core.plan import StepPlan as New; "
        "from rollcast.simulator.plan import StepPlan as Older;"
        "import rollcast.simulator.policies;"
        "print(StepPlan is New is Older, old is rollcast.simulator.policies.april,"
        " old.__spec__.name)"
    )
    done = call(scripts / "python", "-W", "always", "-c", code, cwd=tmp_path)
    assert succeeded(done).split() == ["True", "True", "rollcast.simulator.policies.april"]
    said = [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    assert len(said) == 2
    assert "simulator is called rollcast.simulator now" in said[0]
    assert "rollcast.simulator.plan is called rollcast.simulator.core.plan now" in said[1]


@pytest.mark.parametrize(
    ("words", "offered"), [("rollcast si", "simulate"), ("rollcast val", "validate")]
)
def test_a_shell_completes_commands_of_every_package(
    scripts: Path, decoys: Path, words: str, offered: str
) -> None:
    asked = {"_ROLLCAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "1"}
    done = call(scripts / "rollcast", cwd=decoys, PYTHONPATH=str(decoys), **asked)
    assert succeeded(done).split() == [offered]
